package indexer

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/test/testenv"
)

// An index service may repeat what the router has sent to it. The log does not show the key.
func TestAServiceThatRepeatsTheKeyShowsItToNobody(t *testing.T) {
	const key = "very-secret-key"
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "you sent "+r.Header.Get("Authorization"), 500)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	logged := new(testenv.Buffer)
	a := newAsker(t, s.URL, func(o *ClientConfig, _ *warmpath.Options) { o.Key = key }, logged)
	testenv.Until(t, "the answer is shown", func() bool { return strings.Contains(logged.String(), "you sent") })
	a.stop()
	if text := logged.String(); strings.Contains(text, key) || !strings.Contains(text, "you sent Bearer [redacted]") {
		t.Errorf("the key is shown:\n%s", text)
	}
}
