"""A network of one's own: registered is the feature part, made from the input's shape; the classifier is added to it.

domainwise --plugin THIS_FILE train --dataset BackgroundDigits --network two-layers --test-domain scene1
"""

from torch import Tensor, nn

import domainwise as dw


@dw.network("two-layers")
class TwoLayers(nn.Module):
    """Two convolutions with BatchNorm and ReLU, then the mean over the image."""

    out_features = 64

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, self.out_features, 3, stride=2, padding=1),
            nn.BatchNorm2d(self.out_features),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, out_features]."""
        return self.layers(x).mean((2, 3))
