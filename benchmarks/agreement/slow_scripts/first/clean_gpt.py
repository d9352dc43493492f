import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(vocab_size=2000, n_embd=384, n_layer=4, n_head=6, n_positions=256))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens = torch.randint(0, 2000, (14, 2, 256))
for step, batch in enumerate(tokens):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print(step, loss.item())
