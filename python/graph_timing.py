"""Times CUDA graphs, for the examples and benchmarks with PyTorch."""

import statistics

import torch

# The first replays do not count.
WARM_UP = 3


def captured(run):
    """Returns a CUDA graph of what `run` launches. `run` is called once before the capture."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def replay_ms(graph):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def median_replay_ms(graph, replays):
    return statistics.median([replay_ms(graph) for _ in range(WARM_UP + replays)][WARM_UP:])


def median_ms(run, replays):
    """Returns the median milliseconds of `replays` replays of a graph of what `run` launches."""
    return median_replay_ms(captured(run), replays)
