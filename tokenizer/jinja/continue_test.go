package jinja

import "testing"

// Transformers continues a final message by cutting the rendered chat behind the message's text.
func TestFinalMessagesAreContinuedAsTransformersDoes(t *testing.T) {
	cs := conversations(t)
	renders := 0
	for _, g := range goldens(t) {
		tmpl, parseErr := ParseChat(g.Template)
		for i := range cs {
			want := g.Results[cs[i].Name]
			if want.Unstable || !cs[i].ContinueFinalMessage {
				continue
			}
			renders++
			got, err := []byte(nil), parseErr
			if err == nil {
				got, err = continued(tmpl, &cs[i])
			}
			if d := differs(got, err, &want); d != "" {
				t.Errorf("%s (%s), %s: %s", g.Name, g.SHA256[:12], cs[i].Name, d)
			}
		}
	}
	t.Logf("%d renders", renders)
}

// continued renders a conversation with its final message left open.
func continued(tmpl *ChatTemplate, c *conversation) ([]byte, error) {
	vars, err := c.variables()
	if err != nil {
		return nil, err
	}
	j := &job{template: tmpl, kwargs: vars[0], vars: vars[1], field: "content", context: &RenderContext{Tokens: goldenTokens, Now: goldenTime}}
	return j.render(nil)
}
