package api

// Read reads body as a request of dialect d into r, in one pass and by strict rules. PLACEHOLDER
func Read(d Dialect, body []byte, r *Request) error {
	return Invalid("", "not yet")
}
