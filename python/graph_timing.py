"""Times of CUDA graphs, for the examples and benchmarks with PyTorch."""

import statistics

import torch

WARM_UP = 3  # replays that don't count


def captured(run):
    """A CUDA graph of what `run` launches, which runs once before."""
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
    """Milliseconds of what `run` launches, as a graph: the median of `replays`."""
    return median_replay_ms(captured(run), replays)
