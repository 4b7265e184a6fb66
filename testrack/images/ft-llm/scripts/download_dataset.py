"""Download the data set to --data_dir, and continue an interrupted download."""

from fake_ngc import data, staging

if __name__ == "__main__":
    staging.script(data.gov_report(), "--data_dir", ".gov_report.md5", __doc__)
