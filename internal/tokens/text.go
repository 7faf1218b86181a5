package tokens

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// frontFields are the fields of a chat body that templates put before the first turn, or that change every turn. These
// fields come first in the text. So two prompts with different fields differ from the beginning on.
var frontFields = []api.Field{api.FieldChatTemplate, api.FieldChatTemplateKwargs, api.FieldReasoningEffort,
	api.FieldTools, api.FieldDocuments}

// frontsOfOthers are the same fields of requests to /v1/messages and /v1/responses.
var frontsOfOthers = []api.Field{api.FieldChatTemplateKwargs, api.FieldReasoning, api.FieldPreviousResponseID,
	api.FieldTools, api.FieldSystem, api.FieldInstructions}

// maxText is the length of the longest text, in bytes. 4 MiB are about a million tokens. The rest of a longer prompt is
// left out. Messages after the first maxTurns are left out, too.
const maxText = 4 << 20

// These bytes separate the parts of a prompt's text. In JSON these bytes occur only as escapes in strings. If a client
// puts them into its prompts, only this client's own requests get wrong matches.
const (
	markRole  = 0x01
	markField = 0x02
	markMedia = 0x03
)

// AppendPromptText appends to dst the request's prompt as one text. The text is not what a template renders. But equal
// prompts have equal texts, and a conversation's text grows at its end.
//
// Tools and other fields that concern all turns come first. A message is its role, the text of its content, and its
// other members in the order of the body, apart from null. Images and other media are replaced by hashes. A completions
// body with ids or with several prompts has no text. The text has at most 4 MiB; AppendPromptText cuts off the rest.
func AppendPromptText(dst []byte, r *api.Request) []byte {
	text := appendPrompt(dst, r)
	return text[:min(len(text), len(dst)+maxText)]
}

func appendPrompt(dst []byte, r *api.Request) []byte {
	switch {
	case r.Form == api.PromptText, r.Form == api.PromptTexts && r.Prompts == 1:
		return appendString(dst, onlyText(r.Raw(r.Dialect.Text())))
	case r.Dialect != api.OpenAIChat && !convertible(r.Dialect):
		return dst
	}
	messages, front := r.Raw(api.FieldMessages), frontFields
	if convertible(r.Dialect) {
		front = frontsOfOthers
	}
	if r.Dialect == api.OpenAIResponses {
		if messages = r.Raw(api.FieldInput); len(messages) > 0 && messages[0] == '"' {
			messages = append(append([]byte(`[{"role":"user","content":`), messages...), `}]`...)
		}
	}
	if len(messages) < 2 || messages[0] != '[' {
		return dst
	}
	end, turns := len(dst)+maxText, 0
	for _, f := range front {
		if value := r.Raw(f); len(value) > 0 && string(value) != "null" {
			dst = appendMember(dst, f.String(), value)
		}
	}
	for _, message := range jsonscan.Items(messages) {
		dst = appendMessage(dst, message, end)
		if turns++; turns == maxTurns || len(dst) >= end {
			break
		}
	}
	return dst
}

// appendMessage appends one turn. When dst has end bytes, no more parts or members are added. The order of role and
// content in the object makes no difference.
func appendMessage(dst, message []byte, end int) []byte {
	var role, content []byte
	for name, value := range jsonscan.Members(message) {
		switch string(name) {
		case "role":
			role = value
		case "content":
			content = value
		}
	}
	dst = appendString(append(dst, markRole), role)
	dst = appendContent(append(dst, markField), content, end)
	for name, value := range jsonscan.Members(message) {
		if s := string(name); s != "role" && s != "content" && string(value) != "null" {
			dst = appendMember(dst, s, value)
		}
		if len(dst) >= end {
			break
		}
	}
	return dst
}

// appendContent appends a content, which is one text or a list of parts. When dst has end bytes, no more parts are
// added.
func appendContent(dst, content []byte, end int) []byte {
	if len(content) == 0 || content[0] != '[' {
		return appendValue(dst, content)
	}
	first := true
	for _, part := range jsonscan.Items(content) {
		if !first {
			dst = append(dst, '\n')
		}
		first = false
		if part[0] == '{' {
			dst = appendPart(dst, part)
		} else {
			dst = appendValue(dst, part)
		}
		if len(dst) >= end {
			break
		}
	}
	return dst
}

// appendPart appends one part of a content: the part's text, or a hash of the part if the part is not a text.
func appendPart(dst, part []byte) []byte {
	var text []byte
	isText := true
	for name, value := range jsonscan.Members(part) {
		switch string(name) {
		case "text":
			text = value
		case "type":
			isText = isText && bytes.Contains(value, []byte("text"))
		case "image_url", "input_audio", "audio_url", "video_url", "file", "image_embeds", "audio_embeds", "video_embeds",
			"prompt_embeds":
			isText = false
		}
	}
	if isText && len(text) > 0 {
		return appendValue(dst, text)
	}
	sum := xxh3.Hash128(part).Bytes()
	return append(append(dst, markMedia), sum[:]...)
}

func appendMember(dst []byte, name string, value []byte) []byte {
	dst = append(append(append(dst, markField), name...), ':')
	return appendValue(dst, value)
}

// appendValue appends the text of a string. It appends any other value as spelled, without white space.
func appendValue(dst, value []byte) []byte {
	if len(value) > 0 && value[0] == '"' {
		return appendString(dst, value)
	}
	return jsonscan.AppendCompact(dst, value)
}

// appendString appends the text of a JSON string. It appends nothing for any other value.
func appendString(dst, raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return dst
	}
	text, _ := jsonscan.Unescape(dst, raw[1:len(raw)-1])
	return text
}
