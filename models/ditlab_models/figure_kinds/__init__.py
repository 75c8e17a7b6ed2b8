"""Kinds of figures that several families share, each drawn from plain arrays or from one part of a
network.
"""

SENTENCES = {
    "samples": "What the trained network draws.",
    "imputation": (
        "Held-out windows as measured, with regions masked, and as the network fills them in."
    ),
    "trajectory": "Samples on their way from noise to data: where in sampling the content appears.",
    "denoising": "Real samples at rising noise, and the network's guess from each in one step.",
    "loss": "Training loss at each step and smoothed, and the held-out metrics.",
    "loss_by_time": (
        "Held-out loss by time, beside guesses that need no network: how much was learned, and "
        "where."
    ),
    "loss_by_noise": (
        "Held-out loss by noise, beside guesses that need no network: how much was learned, "
        "and where."
    ),
    "bound": (
        "Where in the noise the likelihood bound comes from, beside predictors without a network."
    ),
    "r2_by_mask_ratio": (
        "Share of variance explained, by how much is masked, beside simple predictors."
    ),
    "r2_by_motif": "Share of variance explained for each feature, beside simple predictors.",
    "attention": "Where each layer and head looks, and how far.",
    "features": "Principal components of the network's inner features: what it distinguishes.",
    "adaln": "How time scales and shifts the features: a flat map means that time is not used.",
    "time_shift": "How time shifts the channels: a flat map means that time is not used.",
    "schedule": "The run's learning rate at each step.",
    "noise_schedule": "Shares of data and noise by time, and how often training draws each time.",
    "forward_pass": "The network as a diagram, with the shapes of this spec.",
    "parameters": "Where the parameters are, by component.",
    "patches": "An image as patches, and the learned projection of them.",
    "positions": "How the network is told where a token is.",
    "time_embedding": "How the network is told the time or the noise.",
}
"""Sentence for a reader on what each kind shows, the most telling kinds first. A kind of another
package has the alternative text of its figure."""
