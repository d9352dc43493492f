"""Transcribe noise with a tiny Whisper of random weights: beam search in half precision; then with word timestamps."""

import torch
import whisper
from whisper.model import ModelDimensions, Whisper

torch.manual_seed(0)
sizes = ModelDimensions(
    n_mels=80, n_audio_ctx=1500, n_audio_state=32, n_audio_head=2, n_audio_layer=2,
    n_vocab=51865, n_text_ctx=64, n_text_state=32, n_text_head=2, n_text_layer=2,
)  # fmt: skip
model = Whisper(sizes).cuda().eval()
for parameter in model.parameters():  # those that the model leaves as they were in memory, too
    torch.nn.init.normal_(parameter, std=0.3)
audio = torch.randn(4 * whisper.audio.SAMPLE_RATE)

mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(audio)).cuda()
options = whisper.DecodingOptions(language="en", beam_size=4, sample_len=12, fp16=True)
decoded = whisper.decode(model, mel.half(), options)
print(f"step 0 loss {-decoded.avg_logprob:.6f} tokens {decoded.tokens}")

done = model.transcribe(
    audio.numpy(), language="en", temperature=0.0, beam_size=4, sample_len=12, word_timestamps=True, fp16=False,
    logprob_threshold=None, no_speech_threshold=None, compression_ratio_threshold=None,
)  # fmt: skip
for segment in done["segments"]:
    print(f"step {segment['id'] + 1} loss {-segment['avg_logprob']:.6f} tokens {segment['tokens']}")
    print([(word["word"], word["start"], word["probability"]) for word in segment["words"]])
