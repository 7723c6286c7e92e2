"""What is trained: each task has its data, its model and hyperparameters that were tuned without compression.

The data is read from a directory that holds, for the tasks that are wanted:

| task       | files                                                                                 |
|------------|---------------------------------------------------------------------------------------|
| `cifar10`  | what examples/datasets.py reads: the Python version as published, or a pack of JPEGs  |
| `cifar100` | the same                                                                              |
| `ptb`      | `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`                                   |
| `ag_news`  | `train.csv` and `test.csv` as published, or `ag_news_extra*.csv`, `ag_news_test*.csv` |
"""

from .ag_news import AGNews
from .cifar import Cifar10, Cifar100
from .ptb import PTB
from .task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Cifar10, Cifar100, PTB, AGNews)}
__all__ = ["TASKS", "Task"]
