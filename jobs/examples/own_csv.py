"""Your own tables: two CSV files with string ids become a dataset, a run, and a model to hand on.

    python jobs/examples/own_csv.py

It writes its own people and friendships; put your files in their place.
"""

# %%
import csv
import random

import torch

import dnformer
from dnformer.data.ingest.tables import TableSource
from dnformer.export import export

# %% [markdown]
# An edge table has the columns src and dst, a node table id, label and features; other names can be
# given, as can Parquet, globs and stores elsewhere. A bad row is named by file, row and value.

# %%
draw = random.Random(0)
people = {f"person-{i:03}": ("tea", "coffee")[i % 2] for i in range(200)}
with open("people.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "label", "sleep", "cups"])
    for name, drink in people.items():
        cups = draw.gauss(4 if drink == "coffee" else 1, 1)
        rows.writerow([name, drink, f"{draw.uniform(0, 8):.1f}", f"{cups:.2f}"])
with open("friends.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["src", "dst"])
    names = list(people)
    for name, drink in people.items():
        alike = [other for other in names if people[other] == drink and other != name]
        rows.writerows([name, friend] for friend in draw.sample(alike, 3))

# %%
source = TableSource(edges="friends.csv", nodes="people.csv")
manifest, written = dnformer.ingest(source, "cache/people", policies={"direction": "undirected"})
print(f"{manifest.num_nodes} people, {manifest.num_edges} friendships, written: {written}")

# %%
result = dnformer.train({
    "name": "people",
    "optim": {"lr": 0.01},
    "data": {"uri": "cache/people", "split": {"random": [0.6, 0.2, 0.2]}},
    "loader": {"num_neighbors": [5, 5], "batch_size": 32},
    "model": {"hidden": 8, "heads": 2, "dropout": 0.2},
    "train": {"epochs": 30, "threads": 1},
})  # fmt: skip
print(f"test accuracy {result.test['accuracy']:.1%}; the files are in {result.run}")

# %% [markdown]
# A folder that needs neither the run nor the dataset: weights, config and a model card.

# %%
export(result.run, "people-model", overwrite=True)
model = dnformer.load("people-model")

# %% [markdown]
# New people: features in the order of the table's columns, friendships as PyG's edge_index.

# %%
x = torch.tensor([[7.0, 3.2], [6.5, 4.4], [4.0, 3.9]])
edge_index = torch.tensor([[1, 2, 0], [0, 0, 1]])  # 1 and 2 are friends of 0, 0 is one of 1
with torch.no_grad():
    probabilities = model.decide(model(x, edge_index))
for row in probabilities.tolist():
    print(dict(zip(model.classes or [], (round(share, 2) for share in row), strict=True)))
