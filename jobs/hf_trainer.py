"""Hugging Face's Trainer and a small GPT-2, made on the spot, that learns to add: nothing is downloaded.

orch needs two lines of it: OrchCallback among the callbacks, and what `train` resumes from.
"""

import argparse
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from orchestrator.training.hf import OrchCallback

LETTERS = "0123456789+="
OUT = Path(os.environ.get("ORCH_OUTPUT_DIR", "outputs"))


def sums(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Texts such as 07+05=12, as places in LETTERS."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(50, (count, 2), generator=generator).tolist()
    texts = torch.tensor([[LETTERS.index(letter) for letter in f"{a:02}+{b:02}={a + b:02}"] for a, b in pairs])
    asked = torch.tensor([-100] * 6)  # only the answer counts
    return [{"input_ids": text, "labels": torch.cat((asked, text[6:]))} for text in texts]


def newest() -> Path | None:
    """The newest checkpoint that is whole: Trainer writes trainer_state.json last."""
    found = [path.parent for path in OUT.glob("checkpoint-*/trainer_state.json")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    set_seed(0)
    places = len(LETTERS)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=places, n_positions=8, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    )
    trainer = Trainer(
        model,
        TrainingArguments(
            str(OUT),
            use_cpu=not torch.cuda.is_available(),  # without it, Trainer on CPUs ignores the other ranks
            max_steps=steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            logging_steps=10,
            save_steps=25,
            save_total_limit=2,
            dataloader_num_workers=1,
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=sums(2000, seed=1),
        eval_dataset=sums(200, seed=2),
        callbacks=[OrchCallback()],
    )
    trainer.train(resume_from_checkpoint=os.environ.get("ORCH_RESUME_FROM") or newest())
    trainer.evaluate()
    trainer.save_model(str(OUT / "final"))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
