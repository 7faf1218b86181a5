package jinja

import (
	"strings"
)

// vllmContent turns a message's content into a list of parts (FormatOpenAI) or one text.
func (b *bodyReader) vllmContent(m *Dict, role string, format ContentFormat) (Value, error) {
	content, given := m.Get("content")
	var parts []Value
	switch {
	case content.Kind() == KindString:
		parts = []Value{content}
	case content.Kind() == KindList:
		parts = content.Items()
	case !given, content.Kind() == KindNone && role == "assistant":
	default:
		return None, refuse("the content of a %s message is a %s", role, content.TypeName())
	}
	if role == "system" {
		parts = stripBilling(parts)
	}
	var out []Value
	var texts []string
	for i := range parts {
		part, err := b.vllmPart(&parts[i], format)
		if err != nil {
			return None, err
		}
		switch {
		case part.Kind() == KindDict:
			out = append(out, part)
		case part.Text() != "":
			texts = append(texts, part.Text())
		}
	}
	if format == FormatOpenAI {
		return List(out), nil
	}
	return Text(strings.Join(texts, "\n")), nil
}

// billingHeader begins a line that some clients put into the system prompt and that changes with every request.
const billingHeader = "x-anthropic-billing-header"

func stripBilling(parts []Value) []Value {
	var out []Value
	for _, part := range parts {
		s := part.Text()
		if roleOfPart(&part, "text") {
			s, _ = textOf(part.Dict(), "text")
		}
		if !strings.HasPrefix(s, billingHeader) {
			out = append(out, part)
			continue
		}
		_, rest, _ := strings.Cut(s, "\n")
		if rest == "" {
			continue
		}
		if part.Kind() == KindDict {
			d := part.Dict().Clone()
			d.Set("text", Text(rest))
			part = FromDict(d)
		} else {
			part = Text(rest)
		}
		out = append(out, part)
	}
	return out
}

// knownPartFields are the members of content parts that OpenAI's and vLLM's types have; others ride along.
var knownPartFields = map[string]bool{"audio_embeds": true, "audio_url": true, "closed": true, "data": true, "file": true,
	"image_embeds": true, "image_pil": true, "image_url": true, "input_audio": true, "name": true,
	"prompt_cache_breakpoint": true, "refusal": true, "text": true, "thinking": true, "type": true, "uuid": true,
	"video_embeds": true, "video_url": true}

// vllmPart is one part: a dict for FormatOpenAI, else a text, empty for what is skipped.
func (b *bodyReader) vllmPart(part *Value, format ContentFormat) (Value, error) {
	if part.Kind() == KindString {
		return wrapped(part.Text(), nil, format), nil
	}
	if part.Kind() != KindDict {
		return None, refuse("a content part is a %s", part.TypeName())
	}
	d := part.Dict()
	kind, _ := textOf(d, "type")
	if kind == "" {
		kind = mediaKey(d)
	}
	switch kind {
	case "text", "refusal", "thinking":
		v, _ := d.Get(kind)
		if v.Kind() != KindString {
			return None, refuse("a %s part without text", kind)
		}
		return wrapped(v.Text(), d, format), nil
	case "tool_reference":
		name, _ := textOf(d, "name")
		if format != FormatOpenAI {
			return Text(name), nil
		}
		ref := &Dict{}
		ref.Set("type", Text(kind))
		ref.Set("name", Text(name))
		return FromDict(ref), nil
	case "image_url", "image_embeds":
		return b.vllmMedia("image", kind, d, format)
	case "audio_url", "input_audio", "audio_embeds":
		return b.vllmMedia("audio", kind, d, format)
	case "video_url", "video_embeds":
		return b.vllmMedia("video", kind, d, format)
	case "prompt_embeds":
		return None, ErrMedia
	}
	return None, refuse("unsupported content part %q", kind)
}

// mediaKey is the kind of a part that leaves its type out.
func mediaKey(d *Dict) string {
	for _, key := range [...]string{"image_url", "image_embeds", "audio_embeds", "video_embeds", "audio_url", "input_audio", "video_url"} {
		if d.Has(key) {
			return key
		}
	}
	return ""
}

// wrapped is a text as the format wants it, with the members of its part that nobody knows.
func wrapped(s string, d *Dict, format ContentFormat) Value {
	if format != FormatOpenAI {
		return Text(s)
	}
	part := &Dict{}
	part.Set("type", Text("text"))
	part.Set("text", Text(s))
	rideAlong(part, d)
	return FromDict(part)
}

func rideAlong(part, d *Dict) {
	for name, v := range d.All() {
		if !knownPartFields[name] {
			part.Set(name, v)
		}
	}
}

func (b *bodyReader) vllmMedia(modality, kind string, d *Dict, format ContentFormat) (Value, error) {
	m := Media{Kind: kind}
	m.UUID, _ = textOf(d, "uuid")
	if at, _ := d.Get(kind); at.Kind() == KindString {
		m.URL = at.Text()
	} else if at.Kind() == KindDict {
		m.URL, _ = textOf(at.Dict(), "url")
	}
	if b.media = append(b.media, m); format != FormatOpenAI {
		return None, ErrMedia // the model's placeholder text goes in front
	}
	part := &Dict{}
	part.Set("type", Text(modality))
	rideAlong(part, d)
	return FromDict(part), nil
}
