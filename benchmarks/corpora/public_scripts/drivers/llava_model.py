"""Three training steps of a tiny LLaVA of random weights on pictures of noise, and an answer in half precision."""

import torch
from llava.constants import IMAGE_TOKEN_INDEX
from llava.model.language_model.llava_llama import LlavaConfig, LlavaLlamaForCausalLM
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIPVisionModel(CLIPVisionConfig(image_size=32, patch_size=8, **sizes)).save_pretrained("vision")
CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained("vision")
config = LlavaConfig(
    vocab_size=120, max_position_embeddings=128, pretraining_tp=1, mm_vision_tower="./vision", mm_hidden_size=32,
    mm_projector_type="mlp2x_gelu", mm_vision_select_layer=-2, mm_vision_select_feature="patch",
    tokenizer_model_max_length=128, tune_mm_mlp_adapter=False, mm_use_im_start_end=False, pad_token_id=0,
    num_key_value_heads=2, **sizes,
)  # fmt: skip
model = LlavaLlamaForCausalLM(config)
model.get_vision_tower().load_model()
model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

tokens = torch.randint(1, 120, (2, 12)).cuda()
tokens[:, 3] = IMAGE_TOKEN_INDEX
images = torch.randn(2, 3, 32, 32).cuda()
for step in range(3):
    loss = model(input_ids=tokens, labels=tokens, images=images).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")

model.half().eval()
with torch.inference_mode():
    answer = model.generate(tokens, images=images.half(), do_sample=False, max_new_tokens=8, use_cache=True)
print(f"answer {answer.tolist()}")
