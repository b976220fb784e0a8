"""Presets: feeds for messages of known senders, which a feed of the configuration uses and overrides key by key.

Each YAML file has the keys of one preset; the modules have decoder classes that presets name. In a preset's rules,
`<key>` stands for each column of the feed's key: a rule with it in `when` is repeated for each, and so is an entry of
`row`.
"""
