"""Actions at a step of a training run in this process."""

from ditlab.tracking.journal_writer import JournalWriter


def act_after_step(monkeypatch, step, act):
    """Call `act` once, when the metrics of a step have been logged."""
    log_metrics, acted = JournalWriter.log_metrics, False

    def log(self, at, values):
        nonlocal acted
        log_metrics(self, at, values)
        if at == step and "train/loss" in values and not acted:
            acted = True
            act()

    monkeypatch.setattr(JournalWriter, "log_metrics", log)
