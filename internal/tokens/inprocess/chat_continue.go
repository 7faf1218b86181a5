package inprocess

import (
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// continueTag marks the end of the final message's text in the rendered chat. Transformers uses the same tag.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// finalCut has the text of the final message. The rendered chat is cut after this text.
type finalCut struct{ text string }

// openFinal prepares a request with continue_final_message, in which the answer continues the text of the final
// message: it puts continueTag after the text, in a copy of the message. For other requests it returns nil.
func (j *renderJob) openFinal() (*finalCut, error) {
	if j.field == "" {
		return nil, nil
	}
	messages := j.lookup("messages")
	if messages.Kind() != jinja.KindList || len(messages.Items()) == 0 {
		return nil, unfit("continue_final_message is set but there is no message")
	}
	items := append([]jinja.Value(nil), messages.Items()...)
	last := &items[len(items)-1]
	if last.Kind() != jinja.KindDict {
		return nil, unfit("continue_final_message is set but the final message is no object")
	}
	content, ok := last.Dict().Get(j.field)
	if !ok || content.Kind() == jinja.KindNone {
		return nil, unfit("continue_final_message is set but the final message has no %q to continue", j.field)
	}
	if !strings.Contains(j.template.source, j.field) {
		return nil, unfit("continue_final_message is set to %q but the template has no such field", j.field)
	}
	message := last.Dict().Clone()
	*last = jinja.FromDict(message)
	cut := &finalCut{}
	switch content.Kind() {
	case jinja.KindString:
		cut.text = content.Text()
		message.Set(j.field, jinja.Text(content.Text()+continueTag))
	case jinja.KindList:
		parts := append([]jinja.Value(nil), content.Items()...)
		if !tagLastText(parts, cut) {
			return nil, unfit("continue_final_message is set but the final message has no text to continue")
		}
		message.Set(j.field, jinja.List(parts))
	default:
		return nil, unfit("continue_final_message is set but the final message's %s is a %s", j.field,
			content.TypeName())
	}
	if j.kwargs.Has("messages") {
		return nil, unfit("got multiple values for keyword argument 'messages'")
	}
	j.vars = j.vars.Clone()
	j.vars.Set("messages", jinja.List(items))
	return cut, nil
}

// tagLastText puts the tag after the last part that has a text. It returns false if no part has a text.
func tagLastText(parts []jinja.Value, cut *finalCut) bool {
	for i := len(parts) - 1; i >= 0; i-- {
		if parts[i].Kind() != jinja.KindDict {
			continue
		}
		s, ok := parts[i].Dict().Get("text")
		if !ok || s.Kind() != jinja.KindString {
			continue
		}
		part := parts[i].Dict().Clone()
		part.Set("text", jinja.Text(s.Text()+continueTag))
		parts[i] = jinja.FromDict(part)
		cut.text = s.Text()
		return true
	}
	return false
}

// apply returns the length to which the rendered chat is cut.
func (c *finalCut) apply(chat string) (int, error) {
	tag := strings.TrimRight(continueTag, " ")
	at := strings.LastIndex(chat, tag)
	if at < 0 || !strings.Contains(chat, strings.TrimFunc(c.text, jinja.IsSpace)) {
		return 0, unfit("continue_final_message is set but the final message does not appear in the rendered chat")
	}
	if strings.HasPrefix(chat[at:], continueTag) {
		return at, nil
	}
	return len(strings.TrimRightFunc(chat[:at], jinja.IsSpace)), nil
}

// unfit returns the error for a final message that cannot be continued.
func unfit(format string, args ...any) error {
	return fmt.Errorf("render template: "+format, args...)
}
