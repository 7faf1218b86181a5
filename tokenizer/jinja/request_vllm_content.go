package jinja

import (
	"strings"
)

// vllmContent turns a message's content into a list of parts (FormatOpenAI) or one text.
func (b *bodyReader) vllmContent(m *dict, role string, format ContentFormat) (value, error) {
	content, given := m.get("content")
	var parts []value
	switch {
	case content.kind == kindString:
		parts = []value{content}
	case content.kind == kindList:
		parts = content.items()
	case !given, content.kind == kindNone && role == "assistant":
	default:
		return none, refuse("the content of a %s message is a %s", role, content.typeName())
	}
	if role == "system" {
		parts = stripBilling(parts)
	}
	var out []value
	var texts []string
	for i := range parts {
		part, err := b.vllmPart(&parts[i], format)
		if err != nil {
			return none, err
		}
		switch {
		case part.kind == kindDict:
			out = append(out, part)
		case part.str != "":
			texts = append(texts, part.str)
		}
	}
	if format == FormatOpenAI {
		return newList(out), nil
	}
	return text(strings.Join(texts, "\n")), nil
}

// billingHeader begins a line that some clients put into the system prompt and that changes with every request.
const billingHeader = "x-anthropic-billing-header"

func stripBilling(parts []value) []value {
	var out []value
	for _, part := range parts {
		s := part.str
		if roleOfPart(&part, "text") {
			s, _ = textOf(part.dict(), "text")
		}
		if !strings.HasPrefix(s, billingHeader) {
			out = append(out, part)
			continue
		}
		_, rest, _ := strings.Cut(s, "\n")
		if rest == "" {
			continue
		}
		if part.kind == kindDict {
			d := part.dict().clone()
			d.set("text", text(rest))
			part = newDict(d)
		} else {
			part = text(rest)
		}
		out = append(out, part)
	}
	return out
}

// knownPartFields are the members of content parts that OpenAI's and vLLM's types have; others ride along.
var knownPartFields = set("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url",
	"input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url")

// vllmPart is one part: a dict for FormatOpenAI, else a text, empty for what is skipped.
func (b *bodyReader) vllmPart(part *value, format ContentFormat) (value, error) {
	if part.kind == kindString {
		return wrapped(part.str, nil, format), nil
	}
	if part.kind != kindDict {
		return none, refuse("a content part is a %s", part.typeName())
	}
	d := part.dict()
	kind, _ := textOf(d, "type")
	if kind == "" {
		kind = mediaKey(d)
	}
	switch kind {
	case "text", "refusal", "thinking":
		v, _ := d.get(kind)
		if v.kind != kindString {
			return none, refuse("a %s part without text", kind)
		}
		return wrapped(v.str, d, format), nil
	case "tool_reference":
		name, _ := textOf(d, "name")
		if format != FormatOpenAI {
			return text(name), nil
		}
		ref := &dict{}
		ref.set("type", text(kind))
		ref.set("name", text(name))
		return newDict(ref), nil
	case "image_url", "image_embeds":
		return b.vllmMedia("image", kind, d, format)
	case "audio_url", "input_audio", "audio_embeds":
		return b.vllmMedia("audio", kind, d, format)
	case "video_url", "video_embeds":
		return b.vllmMedia("video", kind, d, format)
	case "prompt_embeds":
		return none, ErrMedia
	}
	return none, refuse("unsupported content part %q", kind)
}

// mediaKey is the kind of a part that leaves its type out.
func mediaKey(d *dict) string {
	for _, key := range [...]string{"image_url", "image_embeds", "audio_embeds", "video_embeds", "audio_url", "input_audio", "video_url"} {
		if d.find(key) >= 0 {
			return key
		}
	}
	return ""
}

// wrapped is a text as the format wants it, with the members of its part that nobody knows.
func wrapped(s string, d *dict, format ContentFormat) value {
	if format != FormatOpenAI {
		return text(s)
	}
	part := &dict{}
	part.set("type", text("text"))
	part.set("text", text(s))
	rideAlong(part, d)
	return newDict(part)
}

func rideAlong(part, d *dict) {
	if d == nil {
		return
	}
	for i := range d.keys {
		if !knownPartFields[d.keys[i].str] {
			part.set(d.keys[i].str, d.vals[i])
		}
	}
}

func (b *bodyReader) vllmMedia(modality, kind string, d *dict, format ContentFormat) (value, error) {
	m := Media{Kind: kind}
	m.UUID, _ = textOf(d, "uuid")
	if at, _ := d.get(kind); at.kind == kindString {
		m.URL = at.str
	} else if at.kind == kindDict {
		m.URL, _ = textOf(at.dict(), "url")
	}
	if b.media = append(b.media, m); format != FormatOpenAI {
		return none, ErrMedia // the model's placeholder text goes in front
	}
	part := &dict{}
	part.set("type", text(modality))
	rideAlong(part, d)
	return newDict(part), nil
}
