package inprocess

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/test/testenv"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// templateDiffers describes how a rendered text differs from the text that Python rendered. It returns "" if the two
// texts are equal.
func templateDiffers(got string, err error, want *testenv.TemplateResult) string {
	var raised *jinja.RaisedError
	switch {
	case want.Text != nil && err != nil:
		return fmt.Sprintf("failed: %v", err)
	case want.Text != nil:
		return firstDifference(got, *want.Text)
	case err == nil:
		return fmt.Sprintf("rendered %q, Python failed", got)
	case want.Raised != nil && (!errors.As(err, &raised) || raised.Message != *want.Raised):
		return fmt.Sprintf("failed with %v, the template raised %q", err, *want.Raised)
	}
	return ""
}

func firstDifference(got, want string) string {
	if got == want {
		return ""
	}
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	from := max(0, n-40)
	return fmt.Sprintf("at byte %d:\n got %q\nwant %q", n, got[from:min(len(got), n+60)],
		want[from:min(len(want), n+60)])
}
