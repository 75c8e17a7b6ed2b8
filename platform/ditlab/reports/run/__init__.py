"""Page of one run: result, curves, samples, speed, timeline, spec, parameters, data, next commands."""
