package block

// Prefix identifies the first tokens of a prompt, as a key for data about them. The zero value identifies none.
type Prefix struct {
	Tokens int       // number of tokens in the prefix
	Mark   [2]uint64 // equal marks mean equal tokens; not both numbers are 0 unless Tokens is 0
}
