"""The accuracies of the paper's tables, laid out as printed, under our names of datasets, domains and algorithms.

A paragraph with a table's number, label and title, and its notes; then its grids. A grid may begin with what all its
cells have in common; its corner says what rows and columns are; columns stand two spaces or more apart; "-" is an empty
cell, and a cell marked * is meant by the note marked *. Tables are numbered as in print: 6, 7, 8 and 14 are search
spaces (`spaces.py`). `tables.py` reads this.
"""

MAIN_PAPER = """
Table 1  bench  Test accuracy (%) on four representative tasks for OOD generalization
* TerraIncognita, UAT: 41.9 ± 1.8 in Table 1, 41.8 ± 1.2 in Table 11.
AT, UAT, WRM, ADA and DAT are the paper's own runs. The rest is adopted: ColoredMNIST from DomainBed, else OoD-Bench.
The paper's own ERM has 80.6 ± 0.6 on PACS (Table 10) and 42.2 ± 0.4 on TerraIncognita (Table 11).

algorithm / dataset  ColoredMNIST  NICO        PACS        TerraIncognita
ERM                  58.5 ± 0.3    72.1 ± 1.6  81.5 ± 0.0  42.6 ± 0.9
VREx                 56.3 ± 1.9    71.5 ± 2.3  81.8 ± 0.1  40.7 ± 0.7
GroupDRO             61.2 ± 0.6    71.0 ± 0.4  80.4 ± 0.3  36.8 ± 1.1
IRM                  70.2 ± 0.2    73.3 ± 2.1  81.1 ± 0.3  42.0 ± 1.8
ARM                  63.2 ± 0.7    67.3 ± 0.2  81.0 ± 0.4  39.4 ± 0.7
RSC                  58.5 ± 0.5    74.3 ± 1.9  82.8 ± 0.4  43.6 ± 0.5
DANN                 58.3 ± 0.2    69.4 ± 1.7  81.1 ± 0.4  39.5 ± 0.2
MMD                  63.4 ± 0.7    68.9 ± 1.2  81.7 ± 0.2  38.3 ± 0.4
MTL                  57.6 ± 0.3    70.6 ± 0.8  81.2 ± 0.4  38.9 ± 0.6
MLDG                 58.4 ± 0.2    66.6 ± 2.4  73.0 ± 0.4  27.3 ± 2.0
SagNet               58.2 ± 0.3    69.8 ± 0.7  81.6 ± 0.4  42.3 ± 0.7
CORAL                57.6 ± 0.5    70.8 ± 1.0  81.6 ± 0.6  38.3 ± 0.7
Mixup                58.4 ± 0.2    72.5 ± 1.5  79.8 ± 0.6  39.8 ± 0.3
AT                   57.9 ± 0.4    70.5 ± 0.7  82.0 ± 0.2  42.6 ± 0.3
UAT                  58.7 ± 2.3    69.1 ± 1.2  80.7 ± 0.4  41.9 ± 1.8 *
WRM                  57.9 ± 3.3    68.2 ± 1.0  80.4 ± 0.0  26.1 ± 1.5
ADA                  56.3 ± 0.4    69.5 ± 1.9  80.2 ± 0.2  41.2 ± 0.7
DAT                  68.4 ± 2.0    72.6 ± 1.7  82.0 ± 0.1  42.7 ± 0.7

Text  mixed  Trained on Mixed-Same, tested on Mixed-Rand (Section 4.2)
The paper gives no errors here and does not say how models were selected: DomainBed's usual rule is assumed.

dataset=MixedSame  setting=single  train=Mixed-Same
algorithm / domain  Mixed-Rand
ERM                 71.9
DAT                 72.6

Table 2  single  Average test accuracy (%) of ERM and DAT on four representative tasks (single-source)

setting=single
algorithm / dataset  ColoredMNIST  NICO        PACS        TerraIncognita
ERM                  45.8 ± 0.7    63.2 ± 2.9  59.8 ± 1.6  27.3 ± 4.0
DAT                  46.0 ± 2.0    64.4 ± 0.7  59.9 ± 2.4  28.1 ± 4.0

Table 3  dig  Results of ERM and DAT on Digits
ERM is adopted from Qiao et al. 2020, without errors.
The averages include SVHN.

dataset=Digits  setting=single  train=MNIST
algorithm / domain  SVHN        MNIST-M     SYN         USPS        average
ERM                 27.83       52.72       39.65       76.94       49.29
DAT                 28.2 ± 1.0  55.8 ± 1.4  43.1 ± 0.2  81.3 ± 1.0  52.1

Table 4  euat  Results of UAT, Ensemble UAT and DAT on CMNIST and NICO
UAT and DAT repeat Table 1.

algorithm / dataset  ColoredMNIST  NICO
UAT                  58.7 ± 2.3    69.1 ± 1.2
EnsembleUAT          58.2 ± 2.3    60.8 ± 0.2
DAT                  68.4 ± 2.0    72.6 ± 1.7

Table 5  EpsandAlpha  Test accuracy of l2-norm bounded DAT on NICO by radius eps and step size alpha
* 72.6 in Table 5, as in Table 1, but 72.9 in the text about it.
Each row is a search of its own within these ranges.

dataset=NICO  algorithm=DAT
variant / domain                      test
l2, eps 1e-2..1e-1, alpha 1e-4..1e-3  72.6 ± 1.7 *
l2, eps 1e-2..1e-1, alpha 1e-3..1e-2  72.0 ± 2.1
l2, eps 1e-2..1e-1, alpha 1e-2..1e-1  68.9 ± 1.5
l2, eps 1e-1..1e0, alpha 1e-3..1e-2   71.2 ± 0.4
l2, eps 1e-1..1e0, alpha 1e-2..1e-1   66.6 ± 1.7
l2, eps 1e-1..1e0, alpha 1e-1..1e0    69.4 ± 0.4
l2, eps 1e0..1e1, alpha 1e-3..1e-2    64.6 ± 0.3
l2, eps 1e0..1e1, alpha 1e-2..1e-1    67.9 ± 2.0
l2, eps 1e0..1e1, alpha 1e-1..1e0     67.4 ± 0.4
"""

APPENDIX = """
Table 9  cmnist  Test accuracy of ERM, UAT and DAT on CMNIST
* UAT by training-domain validation: the domains give 51.93, the printed average is 52.0.
ERM is adopted from DomainBed. By training-domain validation it has 52.0 here and 51.5 in Table 12.

dataset=ColoredMNIST  selection=training-domain
algorithm / domain  +90%        +80%        -90%        average
ERM                 72.7 ± 0.2  73.2 ± 0.3  10.0 ± 0.0  52.0 ± 0.1
UAT                 72.1 ± 0.1  73.7 ± 0.1  10.0 ± 0.1  52.0 ± 0.1 *
DAT                 72.4 ± 0.2  73.7 ± 0.1  10.2 ± 0.2  52.1 ± 0.1

dataset=ColoredMNIST  selection=oracle
algorithm / domain  +90%        +80%        -90%        average
ERM                 72.3 ± 0.6  73.1 ± 0.3  30.0 ± 0.3  58.5 ± 0.3
UAT                 75.3 ± 6.4  71.9 ± 0.7  29.0 ± 0.2  58.7 ± 2.3
DAT                 78.5 ± 4.8  79.3 ± 0.2  47.5 ± 2.6  68.4 ± 2.0

Table 10  pacs  Test accuracy of ERM, UAT and DAT on PACS
The two sub-captions are swapped in print: the block with UAT 80.7 and DAT 82.0, as in Table 1, is training-domain.

dataset=PACS  selection=training-domain
algorithm / domain  art_painting  cartoon     photo       sketch      average
ERM                 80.5 ± 0.8    74.2 ± 0.5  94.7 ± 0.5  72.9 ± 2.1  80.6 ± 0.6
UAT                 79.9 ± 0.6    74.7 ± 0.8  92.6 ± 0.4  75.5 ± 2.1  80.7 ± 0.4
DAT                 80.0 ± 0.3    77.6 ± 0.8  92.6 ± 0.9  77.6 ± 0.5  82.0 ± 0.1

dataset=PACS  selection=oracle
algorithm / domain  art_painting  cartoon     photo       sketch      average
ERM                 79.7 ± 1.0    76.9 ± 0.3  94.2 ± 0.4  78.3 ± 1.5  82.3 ± 0.4
UAT                 80.4 ± 2.1    75.0 ± 0.4  93.5 ± 0.5  79.3 ± 0.4  82.0 ± 0.6
DAT                 79.7 ± 0.1    74.9 ± 0.7  93.9 ± 0.6  78.1 ± 0.4  81.7 ± 0.2

Table 11  terrain  Test accuracy of ERM, UAT and DAT on TerraInc
* TerraIncognita, UAT: 41.9 ± 1.8 in Table 1, 41.8 ± 1.2 in Table 11.

dataset=TerraIncognita  selection=training-domain
algorithm / domain  L100        L38         L43         L46         average
ERM                 53.2 ± 1.4  31.9 ± 0.3  50.2 ± 0.9  33.6 ± 0.3  42.2 ± 0.4
UAT                 47.2 ± 3.3  36.9 ± 1.6  50.3 ± 0.3  32.8 ± 0.3  41.8 ± 1.2 *
DAT                 53.8 ± 1.6  35.1 ± 2.3  50.3 ± 0.3  31.7 ± 0.6  42.7 ± 0.7

dataset=TerraIncognita  selection=oracle
algorithm / domain  L100        L38         L43         L46         average
ERM                 55.8 ± 1.1  40.8 ± 2.0  49.8 ± 1.3  35.0 ± 0.2  45.3 ± 0.3
UAT                 50.5 ± 2.6  40.3 ± 0.2  50.7 ± 0.3  34.3 ± 0.5  44.0 ± 0.6
DAT                 54.1 ± 2.3  42.5 ± 2.1  52.7 ± 0.8  35.1 ± 1.0  46.1 ± 0.6

Table 12  db  Sweep results on DomainBed
All but DAT is adopted from DomainBed's repository.
DomainBed's network is ResNet-50 where Table 1 has ResNet-18; the paper does not say which one DAT has here.

selection=training-domain
algorithm / dataset  ColoredMNIST  RotatedMNIST  VLCS        PACS        OfficeHome  TerraIncognita  Avg
ERM                  51.5 ± 0.1    98.0 ± 0.0    77.5 ± 0.4  85.5 ± 0.2  66.5 ± 0.3  46.1 ± 1.8      70.9
IRM                  52.0 ± 0.1    97.7 ± 0.1    78.5 ± 0.5  83.5 ± 0.8  64.3 ± 2.2  47.6 ± 0.8      70.6
GroupDRO             52.1 ± 0.0    98.0 ± 0.0    76.7 ± 0.6  84.4 ± 0.8  66.0 ± 0.7  43.2 ± 1.1      70.1
Mixup                52.1 ± 0.2    98.0 ± 0.1    77.4 ± 0.6  84.6 ± 0.6  68.1 ± 0.3  47.9 ± 0.8      71.3
MLDG                 51.5 ± 0.1    97.9 ± 0.0    77.2 ± 0.4  84.9 ± 1.0  66.8 ± 0.6  47.7 ± 0.9      71.0
CORAL                51.5 ± 0.1    98.0 ± 0.1    78.8 ± 0.6  86.2 ± 0.3  68.7 ± 0.3  47.6 ± 1.0      71.8
MMD                  51.5 ± 0.2    97.9 ± 0.0    77.5 ± 0.9  84.6 ± 0.5  66.3 ± 0.1  42.2 ± 1.6      70.0
DANN                 51.5 ± 0.3    97.8 ± 0.1    78.6 ± 0.4  83.6 ± 0.4  65.9 ± 0.6  46.7 ± 0.5      70.7
CDANN                51.7 ± 0.1    97.9 ± 0.1    77.5 ± 0.1  82.6 ± 0.9  65.8 ± 1.3  45.8 ± 1.6      70.2
MTL                  51.4 ± 0.1    97.9 ± 0.0    77.2 ± 0.4  84.6 ± 0.5  66.4 ± 0.5  45.6 ± 1.2      70.5
SagNet               51.7 ± 0.0    98.0 ± 0.0    77.8 ± 0.5  86.3 ± 0.2  68.1 ± 0.1  48.6 ± 1.0      71.7
ARM                  56.2 ± 0.2    98.2 ± 0.1    77.6 ± 0.3  85.1 ± 0.4  64.8 ± 0.3  45.5 ± 0.3      71.2
VREx                 51.8 ± 0.1    97.9 ± 0.1    78.3 ± 0.2  84.9 ± 0.6  66.4 ± 0.6  46.4 ± 0.6      70.9
RSC                  51.7 ± 0.2    97.6 ± 0.1    77.1 ± 0.5  85.2 ± 0.9  65.5 ± 0.9  46.6 ± 1.0      70.6
DAT                  52.1 ± 0.1    97.9 ± 0.0    77.2 ± 0.3  86.0 ± 0.4  67.0 ± 0.4  47.1 ± 0.8      71.2

Table 13  inf  Test accuracy of l_inf-norm bounded DAT on NICO
Each row is a search of its own within these ranges.

dataset=NICO  algorithm=DAT
variant / domain                        test
linf, eps 1e-3..1e-2, alpha 1e-4..1e-3  68.5 ± 0.2
linf, eps 1e-2..1e-1, alpha 1e-3..1e-2  67.9 ± 2.4
linf, eps 1e-1..1e0, alpha 1e-3..1e-2   72.5 ± 1.6

Table 15  cmnistes  ERM on CMNIST (single-source)

dataset=ColoredMNIST  algorithm=ERM  setting=single
train / domain  +90%        +80%        -90%        average
+90%            -           79.8 ± 0.2  21.2 ± 0.2  50.5
+80%            88.7 ± 0.4  -           35.2 ± 1.3  62.0
-90%            21.0 ± 0.9  29.1 ± 0.7  -           25.1

Table 15  cmnistds  DAT on CMNIST (single-source)

dataset=ColoredMNIST  algorithm=DAT  setting=single
train / domain  +90%        +80%        -90%        average
+90%            -           80.0 ± 0.1  27.9 ± 4.7  54.0
+80%            90.0 ± 0.1  -           32.4 ± 1.0  61.2
-90%            18.3 ± 1.1  27.1 ± 1.1  -           22.7

Table 15  nicoes  ERM on NICO (single-source)

dataset=NICO  algorithm=ERM  setting=single
train / domain  test
train1          56.8 ± 3.5
train2          69.6 ± 2.0
average         63.2

Table 15  nicods  DAT on NICO (single-source)

dataset=NICO  algorithm=DAT  setting=single
train / domain  test
train1          61.7 ± 0.9
train2          67.1 ± 0.3
average         64.4

Table 15  pacses  ERM on PACS (single-source)

dataset=PACS  algorithm=ERM  setting=single
train / domain  art_painting  cartoon     photo       sketch      average
art_painting    -             64.9 ± 0.7  94.2 ± 0.1  61.5 ± 4.1  73.5
cartoon         61.9 ± 2.7    -           76.6 ± 1.6  69.5 ± 1.1  69.3
photo           66.9 ± 0.3    26.9 ± 0.1  -           35.5 ± 0.7  43.1
sketch          47.3 ± 0.1    65.7 ± 0.9  46.6 ± 0.8  -           53.2

Table 15  pacsds  DAT on PACS (single-source)

dataset=PACS  algorithm=DAT  setting=single
train / domain  art_painting  cartoon     photo       sketch      average
art_painting    -             59.6 ± 0.0  94.2 ± 0.8  48.7 ± 2.3  67.5
cartoon         68.1 ± 0.1    -           83.9 ± 1.0  69.1 ± 1.3  73.7
photo           64.5 ± 1.4    27.6 ± 5.8  -           30.9 ± 4.5  41.0
sketch          52.2 ± 0.2    63.4 ± 1.4  56.4 ± 1.1  -           57.3

Table 15  terraes  ERM on TerraInc (single-source)
* ERM trained on L46: the domains give 28.17, the printed average is 28.3.

dataset=TerraIncognita  algorithm=ERM  setting=single
train / domain  L100        L38         L43         L46         average
L100            -           24.9 ± 4.1  26.8 ± 0.5  27.1 ± 4.5  26.3
L38             42.3 ± 0.6  -           12.5 ± 1.2  13.2 ± 1.5  22.7
L43             34.2 ± 9.8  31.9 ± 0.9  -           30.1 ± 0.5  32.1
L46             24.9 ± 6.2  13.0 ± 2.8  46.6 ± 2.0  -           28.3 *

Table 15  terrads  DAT on TerraInc (single-source)

dataset=TerraIncognita  algorithm=DAT  setting=single
train / domain  L100        L38         L43         L46         average
L100            -           23.3 ± 1.4  24.3 ± 0.7  16.7 ± 1.2  21.4
L38             44.6 ± 7.4  -           17.3 ± 1.0  16.3 ± 0.4  26.1
L43             35.2 ± 7.4  32.0 ± 7.6  -           32.9 ± 1.5  33.4
L46             24.3 ± 4.0  23.2 ± 0.2  47.5 ± 0.2  -           31.7
"""
