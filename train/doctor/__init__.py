"""What can this machine do? `python -m train.doctor [config]` tries everything that training needs, in a minute."""
