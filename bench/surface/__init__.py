"""Bootstrap, forks, changes and access control: what the wider HTTP surface is to reach."""
