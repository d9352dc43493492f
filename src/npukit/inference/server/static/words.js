// The chat page's own words.
export const WORDS = {
  en: {
    newChat: "New chat", hello: "What shall we work on?", helloMore: "This page talks to the server it came from, and to nobody else.",
    system: "System prompt", systemHint: "How the model should behave", temperature: "Temperature", topP: "Top P",
    repetition: "Repetition penalty", longest: "Max tokens", noLimit: "no limit", seed: "Seed", random: "random",
    thinking: "Let the model think first, if it can", key: "API key", keyHint: "only if the server asks for one", defaults: "Restore defaults",
    ask: "Ask anything", hint: "Enter sends, Shift+Enter starts a new line. Models make mistakes: check what matters.",
    attach: "Add a picture; you can also drop or paste it", removePicture: "Remove the picture", badPicture: "{name} is not a picture that can be read.",
    again: "Regenerate", reasoning: "Reasoning", thinkingNow: "Thinking…",
    stopped: "stopped", cut: "cut off: the token limit was reached",
    needsKey: "The server wants an API key: enter it in the settings.", perSecond: "tokens/s", tokens: "tokens", first: "first token",
    ideas: ["Explain paged attention in three sentences", "Write a Python function that merges two sorted lists", "Compare LoRA and full fine-tuning in a table", "Translate “Practice makes perfect” into Chinese"],
  },
  zh: {
    newChat: "新对话", hello: "今天想做点什么？", helloMore: "本页面只与提供它的服务器通信，不会连接其他任何地址。",
    system: "系统提示词", systemHint: "希望模型如何表现", temperature: "温度", topP: "Top P",
    repetition: "重复惩罚", longest: "最大词元数", noLimit: "不限", seed: "随机种子", random: "随机",
    thinking: "允许模型先思考（如支持）", key: "API 密钥", keyHint: "仅在服务器要求时填写", defaults: "恢复默认值",
    ask: "输入您的问题", hint: "回车发送，Shift+回车换行。模型可能出错，重要内容请核实。",
    attach: "添加图片，也可拖入或粘贴", removePicture: "移除图片", badPicture: "无法读取图片 {name}。",
    again: "重新生成", reasoning: "思考过程", thinkingNow: "思考中…",
    stopped: "已停止", cut: "已截断：达到词元上限",
    needsKey: "服务器需要 API 密钥，请在设置中填写。", perSecond: "词元/秒", tokens: "词元", first: "首词元",
    ideas: ["用三句话解释分页注意力", "写一个合并两个有序列表的 Python 函数", "用表格比较 LoRA 与全量微调", "把“熟能生巧”翻译成英文"],
  },
};
