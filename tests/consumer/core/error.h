#error "a header of the user's own, which brrr's headers must not include instead of theirs"
