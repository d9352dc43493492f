// What options of npukit train mean, in Chinese, by the English sentence: one that was changed since is shown in English.
import { look } from "./look.js";

const MEANINGS = {
  "what the model is trained for: labels of texts (classify); similar texts (embed); documents that fit a question (rerank); preference pairs (dpo and its kin); answers marked good or bad (kto); a reward model from pairs (rm); pre-training on plain text; supervised fine-tuning":
    "训练目标：文本分类（classify）；文本向量（embed）；重排序（rerank）；偏好对（dpo 等）；标注好坏的回答（kto）；奖励模型（rm）；纯文本预训练（pt）；指令微调（sft）",
  "a folder, or a name on the Hugging Face Hub or ModelScope (see hub)":
    "文件夹，或 Hugging Face Hub、ModelScope 上的名称（见 hub）",
  "branch, tag or commit on the hub": "模型库上的分支、标签或提交",
  "where names are looked up; USE_MODELSCOPE_HUB=1 selects modelscope":
    "从哪里查找名称；USE_MODELSCOPE_HUB=1 表示 modelscope",
  "a LoRA adapter to continue training": "要继续训练的 LoRA 适配器",
  "start from new weights in the shape of this model, for pre-training": "按此模型的结构从新权重开始，用于预训练",
  "data type of the loaded weights": "加载权重的数据类型",
  "keep the frozen weights below an adapter in 4 bits (nf4, hqq) or 8 (QLoRA)":
    "适配器之下的冻结权重以 4 位（nf4、hqq）或 8 位保存（QLoRA）",
  "weight of the loss that spreads tokens over the experts of a MoE model (router_aux_loss_coef)":
    "MoE 模型专家均衡损失的权重（router_aux_loss_coef）",
  "special tokens to add to the tokenizer and the model": "加入分词器和模型的特殊词元",
  "stretch rotary positions, as in config.json: {rope_type: yarn, factor: 4}":
    "扩展旋转位置编码，写法同 config.json：{rope_type: yarn, factor: 4}",
  "tokens that model.rope makes room for, if it has no factor": "model.rope 没有 factor 时所支持的词元数",
  "run Python code that comes with the model": "运行模型自带的 Python 代码",
  "train a LoRA adapter, all weights, some layers, or another adapter of PEFT":
    "训练 LoRA 适配器、全部权重、部分层，或 PEFT 的其他适配器",
  "rank of the adapter matrices": "适配器矩阵的秩",
  "more options of PEFT's configuration, as {oft_block_size: 32}": "PEFT 配置的其他选项，例如 {oft_block_size: 32}",
  "LoRA+: how much faster the second matrix of a pair learns than the first":
    "LoRA+：第二个矩阵的学习率是第一个的多少倍",
  "how much it counts to be far from that model": "偏离该模型的惩罚权重",
  "exponent of that uncertainty": "该不确定性的指数",
  "NEFTune: size of the noise added to embeddings": "NEFTune：加到词嵌入上的噪声大小",
  "scale of the adapter; twice the rank if empty": "适配器的缩放系数；留空为秩的两倍",
  "dropout on the adapter's input": "适配器输入的 dropout",
  "names of modules, also beside all-linear; or a regular expression of full names":
    "模块名称，可与 all-linear 并用；或匹配全名的正则表达式",
  "scale by the square root of the rank (rsLoRA)": "按秩的平方根缩放（rsLoRA）",
  "train magnitude and direction separately (DoRA)": "分别训练大小和方向（DoRA）",
  "which biases are trained": "训练哪些偏置",
  "PEFT's init_lora_weights, such as pissa or lora_ga": "PEFT 的 init_lora_weights，例如 pissa 或 lora_ga",
  "rows whose gradients lora_ga begins with": "lora_ga 初始化所用梯度的行数",
  "modules whose weights are trained in full": "全量训练权重的模块",
  "number of last layers to train; below 0, of first ones": "训练最后几层；负数表示最前几层",
  "train that many layers at equal distances instead, such as those of an expanded model":
    "改为训练等间隔的若干层，例如扩展模型的新增层",
  "modules of these layers to train, such as mlp; all if empty": "这些层中要训练的模块，例如 mlp；留空为全部",
  "steps in a turn": "每一轮的步数",
  "layers drawn for a turn": "每一轮抽取的层数",
  "order of the layers": "层的顺序",
  "data sets to train on; a single path is enough": "训练用的数据集；写一个路径即可",
  "data sets to evaluate on, or a share (below 1) or number of training rows":
    "评估用的数据集；或训练数据的比例（小于 1）或行数",
  "folder of dataset_info.json and of files named without a path; REMOTE:owner/name is on a hub":
    "dataset_info.json 和未写路径的文件所在的文件夹；REMOTE:owner/name 表示模型库上的数据",
  "chat template, by name or as a Jinja file; the tokenizer's own if empty":
    "对话模板的名称或 Jinja 文件；留空使用分词器自带的模板",
  "whose way of turning rows into tokens and labels is followed, and whose templates":
    "按哪个工具的方式把数据变成词元和标签，并使用其模板",
  "compute the loss on an empty <think></think> before an answer (ms_swift tokens)":
    "回答前空的 <think></think> 是否计入损失（ms_swift 分词方式）",
  "system message for rows without one": "没有系统消息的行所用的系统消息",
  "maximum tokens in a row; longer ones are cut": "每行的最大词元数；更长的会被截断",
  "what happens to longer rows; cut_start and split are for ms_swift tokens":
    "过长的行如何处理；cut_start 和 split 用于 ms_swift 分词方式",
  "maximum rows of each data set": "每个数据集的最大行数",
  "seed for drawing rows, with llama_factory and ms_swift tokens; training.seed if empty":
    "抽取数据的随机种子（llama_factory、ms_swift 分词方式）；留空用 training.seed",
  "compute the loss on questions too, not only on answers": "问题也计入损失，而不仅是回答",
  "compute the loss only on the last answer of a conversation": "只对对话的最后一个回答计算损失",
  "pack several rows into one; they do not attend to each other": "把多行打包成一行；各行之间互不关注",
  "tokens in a packed row; cutoff if empty": "打包后每行的词元数；留空同 cutoff",
  "read rows as they are needed; needs training.max_steps": "流式读取数据；需要设置 training.max_steps",
  "what to do with rows that cannot be used": "如何处理不可用的行",
  "stop if more than this share of the rows cannot be used": "不可用的行超过此比例时停止",
  "processes that tokenise; one per core if empty": "分词进程数；留空为每核一个",
  "keep tokenised rows for later runs": "保留分词结果供以后使用",
  "how strongly the model is held to the reference": "模型受参考模型约束的强度",
  "SimPO's margin of the rewards": "SimPO 的奖励间隔",
  "probability that a preference is wrong": "偏好标注出错的概率",
  "weight of the plain loss on chosen answers (rpo_alpha, pref_ftx, cpo_alpha)":
    "优选回答上普通损失的权重（rpo_alpha、pref_ftx、cpo_alpha）",
  "KTO's weight of good answers": "KTO 中好回答的权重",
  "KTO's weight of bad answers": "KTO 中坏回答的权重",
  "number of classes; of a regression, of numbers": "类别数；回归时为数值个数",
  "a text has one class, or several at once, or is given a number (regression)":
    "一个文本有一个类别、多个类别，或一个数值（回归）",
  "folder for checkpoints, logs and the trained model": "检查点、日志和训练结果所在的文件夹",
  "passes over the data; may be a fraction": "遍历数据的次数；可以是小数",
  "number of optimizer steps, instead of epochs": "优化器步数，用来代替 epochs",
  "seed for weights, data order and dropout": "权重、数据顺序和 dropout 的随机种子",
  "rows per device in a forward pass": "每张卡每次前向的行数",
  "rows per device in evaluation; batch_size if empty": "评估时每张卡的行数；留空同 batch_size",
  "forward passes per optimizer step": "每个优化器步包含的前向次数",
  "processes that load data; chosen for the device if empty": "加载数据的进程数；留空则按设备选择",
  "shuffle the data each epoch": "每轮打乱数据",
  "the first three are fused if the device supports it; from galore on they need a package of their own; those after sgd need parallel ddp":
    "前三个在设备支持时使用融合实现；galore 及之后的需要各自的软件包；sgd 之后的需要 ddp 并行",
  "more options of an optimizer after sgd, as {rank: 128} for galore":
    "sgd 之后的优化器的其他选项，例如 galore 的 {rank: 128}",
  "peak learning rate": "学习率峰值",
  "not applied to biases and norms": "不作用于偏置和归一化层",
  "for Adam": "用于 Adam",
  "for SGD": "用于 SGD",
  "clip gradients to this norm; 0 turns clipping off": "梯度裁剪的范数；0 表示不裁剪",
  "learning rate schedule; wsd is warm-up, stable, decay": "学习率调度；wsd 为预热、稳定、衰减",
  "warm-up steps; below 1, a share of all steps": "预热步数；小于 1 为占总步数的比例",
  "share of the steps in which the rate decays": "学习率衰减阶段占总步数的比例",
  "times that the rate falls, and starts again at its peak": "学习率下降并重新回到峰值的次数",
  "exponent of the remaining share of steps": "剩余步数比例的指数",
  "final rate of cosine, linear, polynomial and wsd": "cosine、linear、polynomial 和 wsd 的最终学习率",
  "auto: bf16 if the device supports it, otherwise fp16; fp32 on a CPU":
    "auto：设备支持则用 bf16，否则 fp16；CPU 上为 fp32",
  "initial loss scale for fp16": "fp16 的初始损失缩放",
  "how several devices share the work; or the path of a DeepSpeed JSON file":
    "多卡如何分工；或 DeepSpeed JSON 文件的路径",
  "language models: devices that share the tokens of every row (Ulysses), for long rows":
    "语言模型：共同处理一行词元的卡数（Ulysses），用于长序列",
  "for ddp, if some trained parameters take no part in some steps": "用于 ddp：某些步中有参数不参与计算时",
  "for fsdp2 and zero: keep optimizer states in host memory": "用于 fsdp2 和 zero：优化器状态放在主机内存",
  "recompute activations in the backward pass instead of keeping them": "反向时重新计算激活值，而不保存",
  "use torch.compile; if empty, only for language models on CUDA": "使用 torch.compile；留空则仅用于 CUDA 上的语言模型",
  "steps between log lines; below 1, a share of all steps": "日志间隔步数；小于 1 为占总步数的比例",
  "steps between evaluations; below 1, a share of all steps": "评估间隔步数；小于 1 为占总步数的比例",
  "steps between checkpoints; below 1, a share of all steps": "保存间隔步数；小于 1 为占总步数的比例",
  "number of checkpoints to keep, besides the best one": "除最佳检查点外保留的个数",
  "write checkpoints in the background": "在后台写检查点",
  "auto resumes from the newest checkpoint in output; or name a checkpoint":
    "auto 从输出文件夹中最新的检查点继续；也可指定检查点",
  "metric that decides which checkpoint is best": "判定最佳检查点的指标",
  "whether a higher best_metric is better": "best_metric 是否越高越好",
  "write the model of the best evaluation, not that of the last step": "写出评估最好的模型，而不是最后一步的",
  "stop after this many evaluations without improvement": "连续这么多次评估没有改进则停止",
  "services to log to, besides the JSON lines file": "除 JSON 行日志外还要写入的服务",
  "draw the loss curve as a PNG": "把损失曲线画成 PNG",
  "seconds without a step before all stack traces are shown": "多少秒没有进展后打印所有堆栈",
  "write a profiler trace of these steps": "记录这些步的性能轨迹",
  "first and last optimizer step to record": "要记录的第一步和最后一步",
  "record these steps for npukit precision, into output/precision":
    "把这些步记录到 output/precision，供 npukit precision 使用",
  "modules alone, or every operator as well": "只记录模块，或也记录每个算子",
  "first and last step to record, from 0 on": "要记录的第一步和最后一步，从 0 开始",
  "write every tensor too, not only statistics": "除统计量外也写出每个张量",
  "what to do about an anomaly": "发现异常时如何处理",
};

// The meaning of an option in the page's language.
export const meaning = (sentence) => (look.language === "zh" && MEANINGS[sentence]) || sentence;
