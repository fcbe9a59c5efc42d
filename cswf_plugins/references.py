"""Papers behind the built-in plugins, as BibTeX entries for their `references`."""

from __future__ import annotations

LIUTKUS_2019 = r"""@inproceedings{liutkus2019sliced,
  author = {Liutkus, Antoine and Simsekli, Umut and Majewski, Szymon and Durmus, Alain and
            St{\"o}ter, Fabian-Robert},
  title = {Sliced-{Wasserstein} Flows: Nonparametric Generative Modeling via Optimal Transport and Diffusions},
  booktitle = {International Conference on Machine Learning},
  year = {2019}
}"""
"""Flows without a condition."""

ROWLAND_2019 = r"""@inproceedings{rowland2019orthogonal,
  author = {Rowland, Mark and Hron, Jiri and Tang, Yunhao and Choromanski, Krzysztof and Sarlos, Tamas and
            Weller, Adrian},
  title = {Orthogonal Estimation of {Wasserstein} Distances},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year = {2019}
}"""

DESHPANDE_2019 = r"""@inproceedings{deshpande2019max,
  author = {Deshpande, Ishan and Hu, Yuan-Ting and Sun, Ruoyu and Pyrros, Ayis and Siddiqui, Nasir and
            Koyejo, Sanmi and Zhao, Zhizhen and Forsyth, David and Schwing, Alexander G.},
  title = {Max-Sliced {Wasserstein} Distance and Its Use for {GANs}},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2019}
}"""

GREGORY_1982 = r"""@article{gregory1982piecewise,
  author = {Gregory, J. A. and Delbourgo, R.},
  title = {Piecewise Rational Quadratic Interpolation to Monotonic Data},
  journal = {IMA Journal of Numerical Analysis},
  volume = {2},
  number = {2},
  pages = {123--130},
  year = {1982}
}"""

ALPAYDIN_1998 = r"""@misc{alpaydin1998optical,
  author = {Alpaydin, E. and Kaynak, C.},
  title = {Optical Recognition of Handwritten Digits},
  howpublished = {UCI Machine Learning Repository},
  year = {1998}
}"""

LECUN_1998 = r"""@article{lecun1998gradient,
  author = {LeCun, Yann and Bottou, L{\'e}on and Bengio, Yoshua and Haffner, Patrick},
  title = {Gradient-Based Learning Applied to Document Recognition},
  journal = {Proceedings of the IEEE},
  volume = {86},
  number = {11},
  pages = {2278--2324},
  year = {1998}
}"""

XIAO_2017 = r"""@misc{xiao2017fashion,
  author = {Xiao, Han and Rasul, Kashif and Vollgraf, Roland},
  title = {{Fashion-MNIST}: a Novel Image Dataset for Benchmarking Machine Learning Algorithms},
  howpublished = {arXiv:1708.07747},
  year = {2017}
}"""

KRIZHEVSKY_2009 = r"""@techreport{krizhevsky2009learning,
  author = {Krizhevsky, Alex},
  title = {Learning Multiple Layers of Features from Tiny Images},
  institution = {University of Toronto},
  year = {2009}
}"""

LIU_2015 = r"""@inproceedings{liu2015deep,
  author = {Liu, Ziwei and Luo, Ping and Wang, Xiaogang and Tang, Xiaoou},
  title = {Deep Learning Face Attributes in the Wild},
  booktitle = {International Conference on Computer Vision},
  year = {2015}
}"""

HEUSEL_2017 = r"""@inproceedings{heusel2017gans,
  author = {Heusel, Martin and Ramsauer, Hubert and Unterthiner, Thomas and Nessler, Bernhard and
            Hochreiter, Sepp},
  title = {{GANs} Trained by a Two Time-Scale Update Rule Converge to a Local {Nash} Equilibrium},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2017}
}"""

PARMAR_2022 = r"""@inproceedings{parmar2022aliased,
  author = {Parmar, Gaurav and Zhang, Richard and Zhu, Jun-Yan},
  title = {On Aliased Resizing and Surprising Subtleties in {GAN} Evaluation},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2022}
}"""
"""clean-fid, whose feature network and ways of resizing images are used."""

BINKOWSKI_2018 = r"""@inproceedings{binkowski2018demystifying,
  author = {Bi{\'n}kowski, Miko{\l}aj and Sutherland, Danica J. and Arbel, Michael and Gretton, Arthur},
  title = {Demystifying {MMD} {GANs}},
  booktitle = {International Conference on Learning Representations},
  year = {2018}
}"""

CHONG_2020 = r"""@inproceedings{chong2020effectively,
  author = {Chong, Min Jin and Forsyth, David},
  title = {Effectively Unbiased {FID} and Inception Score and Where to Find Them},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2020}
}"""

KYNKAANNIEMI_2019 = r"""@inproceedings{kynkaanniemi2019improved,
  author = {Kynk{\"a}{\"a}nniemi, Tuomas and Karras, Tero and Laine, Samuli and Lehtinen, Jaakko and
            Aila, Timo},
  title = {Improved Precision and Recall Metric for Assessing Generative Models},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2019}
}"""

NAEEM_2020 = r"""@inproceedings{naeem2020reliable,
  author = {Naeem, Muhammad Ferjad and Oh, Seong Joon and Uh, Youngjung and Choi, Yunjey and Yoo, Jaejun},
  title = {Reliable Fidelity and Diversity Metrics for Generative Models},
  booktitle = {International Conference on Machine Learning},
  year = {2020}
}"""

BONNEEL_2015 = r"""@article{bonneel2015sliced,
  author = {Bonneel, Nicolas and Rabin, Julien and Peyr{\'e}, Gabriel and Pfister, Hanspeter},
  title = {Sliced and {Radon} {Wasserstein} Barycenters of Measures},
  journal = {Journal of Mathematical Imaging and Vision},
  volume = {51},
  number = {1},
  pages = {22--45},
  year = {2015}
}"""

SALIMANS_2016 = r"""@inproceedings{salimans2016improved,
  author = {Salimans, Tim and Goodfellow, Ian and Zaremba, Wojciech and Cheung, Vicki and Radford, Alec and
            Chen, Xi},
  title = {Improved Techniques for Training {GANs}},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2016}
}"""

OQUAB_2023 = r"""@misc{oquab2023dinov2,
  author = {Oquab, Maxime and Darcet, Timoth{\'e}e and Moutakanni, Th{\'e}o and others},
  title = {{DINOv2}: Learning Robust Visual Features without Supervision},
  howpublished = {arXiv:2304.07193},
  year = {2023}
}"""
"""The vision transformer whose features are used."""

STEIN_2023 = r"""@inproceedings{stein2023exposing,
  author = {Stein, George and Cresswell, Jesse C. and Hosseinzadeh, Rasa and Sui, Yi and Ross, Brendan Leigh and
            Villecroze, Valentin and Liu, Zhaoyan and Caterini, Anthony L. and Taylor, J. Eric T. and
            Loaiza-Ganem, Gabriel},
  title = {Exposing Flaws of Generative Model Evaluation Metrics and Their Unfair Treatment of Diffusion
           Models},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023}
}"""
"""Fréchet distances of DINOv2's features, and how images are prepared for them."""
