package block

// Prefix identifies the first tokens of a prompt, as a key for data about these tokens. The zero value is no prefix.
type Prefix struct {
	Tokens int       // number of tokens in the prefix
	Mark   [2]uint64 // a hash of the tokens: equal marks mean equal tokens; both numbers are 0 only if Tokens is 0
}
