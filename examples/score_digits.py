"""Generate digits with the recipe `digits`, and ask nearest neighbours among the real ones what they are.

Run it with `make accuracy`.
"""

from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

import cswf_core

flow = cswf_core.build_flow("digits")
first = next(iter(flow)).distance
samples = flow.run()
generated, asked = samples.x.T.numpy(), samples.conditions.labels.numpy()

digits = load_digits()
real = (digits.data + 0.5) * (2 / 17) - 1  # the middle of each grey level, in [−1, 1]
found = KNeighborsClassifier(5).fit(real, digits.target).predict(generated)
neighbours = NearestNeighbors(n_neighbors=2).fit(real)
nearest = neighbours.kneighbors(generated)[0][:, 0]
apart = neighbours.kneighbors(real)[0][:, 1]

print(f"asked for and found by 5 nearest neighbours: {(found == asked).mean():.1%} of {len(asked)}")
print("by class: " + ", ".join(f"{c}: {(found[asked == c] == c).mean():.0%}" for c in range(10)))
print(f"sliced distance along the first step's directions, before it: {first:.2f}")
print(f"from a sample to the nearest real digit: mean {nearest.mean():.2f}, smallest {nearest.min():.2f}")
print(f"from a real digit to the nearest other: mean {apart.mean():.2f}, smallest {apart.min():.2f}")
