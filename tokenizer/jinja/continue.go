package jinja

import (
	"strings"
)

// continueTag marks where the final message's text ends in the rendered chat; the value is Transformers'.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// finalCut cuts a rendered chat behind the text of its final message.
type finalCut struct{ text string }

// openFinal prepares continue_final_message: the final message gets a tag behind its text, in a copy.
func (t *Template) openFinal(j *job) (*finalCut, error) {
	if j.field == "" {
		return nil, nil
	}
	messages := j.lookup("messages")
	if messages.kind != kindList || len(messages.items()) == 0 {
		return nil, failf("continue_final_message is set but there is no message")
	}
	items := append([]value(nil), messages.items()...)
	last := &items[len(items)-1]
	if last.kind != kindDict {
		return nil, failf("continue_final_message is set but the final message is no object")
	}
	content, ok := last.dict().get(j.field)
	if !ok || content.kind == kindNone {
		return nil, failf("continue_final_message is set but the final message has no %q to continue", j.field)
	}
	if !strings.Contains(t.source, j.field) {
		return nil, failf("continue_final_message is set to %q but the template has no such field", j.field)
	}
	message := last.dict().clone()
	*last = newDict(message)
	cut := &finalCut{}
	switch content.kind {
	case kindString:
		cut.text = content.str
		message.set(j.field, text(content.str+continueTag))
	case kindList:
		parts := append([]value(nil), content.items()...)
		if !tagLastText(parts, cut) {
			return nil, failf("continue_final_message is set but the final message has no text to continue")
		}
		message.set(j.field, newList(parts))
	default:
		return nil, failf("continue_final_message is set but the final message's %s is a %s", j.field, content.typeName())
	}
	if j.kwargs.kind == kindDict {
		if _, ok := j.kwargs.dict().get("messages"); ok {
			return nil, failf("got multiple values for keyword argument 'messages'")
		}
	}
	j.vars.set("messages", newList(items))
	return cut, nil
}

// tagLastText tags the last part that has a text.
func tagLastText(parts []value, cut *finalCut) bool {
	for i := len(parts) - 1; i >= 0; i-- {
		if parts[i].kind != kindDict {
			continue
		}
		s, ok := parts[i].dict().get("text")
		if !ok || s.kind != kindString {
			continue
		}
		part := parts[i].dict().clone()
		part.set("text", text(s.str+continueTag))
		parts[i] = newDict(part)
		cut.text = s.str
		return true
	}
	return false
}

// apply is the length to which the rendered chat is cut.
func (c *finalCut) apply(chat string) (int, error) {
	tag := strings.TrimRight(continueTag, " ")
	at := strings.LastIndex(chat, tag)
	if at < 0 || !strings.Contains(chat, strings.TrimFunc(c.text, isSpace)) {
		return 0, failf("continue_final_message is set but the final message does not appear in the rendered chat")
	}
	if strings.HasPrefix(chat[at:], continueTag) {
		return at, nil
	}
	return len(strings.TrimRightFunc(chat[:at], isSpace)), nil
}
