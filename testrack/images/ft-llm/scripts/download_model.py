"""Download the checkpoint to --model_dir, and continue an interrupted download."""

from fake_ngc import data, staging

if __name__ == "__main__":
    staging.script(data.llama2_model(), "--model_dir", ".model.md5", __doc__)
