package inprocess

import (
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// vllmContent turns a message's content into a list of parts if format is formatOpenAI, and into one text if not.
func (b *bodyReader) vllmContent(m *jinja.Dict, role string, format contentFormat) (jinja.Value, error) {
	content, given := m.Get("content")
	var parts []jinja.Value
	switch {
	case content.Kind() == jinja.KindString:
		parts = []jinja.Value{content}
	case content.Kind() == jinja.KindList:
		parts = content.Items()
	case !given, content.Kind() == jinja.KindNone && role == "assistant":
	default:
		return jinja.None, refuse("the content of a %s message is a %s", role, content.TypeName())
	}
	if role == "system" {
		parts = stripBilling(parts)
	}
	var out []jinja.Value
	var texts []string
	for i := range parts {
		part, err := b.vllmPart(&parts[i], format)
		if err != nil {
			return jinja.None, err
		}
		switch {
		case part.Kind() == jinja.KindDict:
			out = append(out, part)
		case part.Text() != "":
			texts = append(texts, part.Text())
		}
	}
	if format == formatOpenAI {
		return jinja.List(out), nil
	}
	return jinja.Text(strings.Join(texts, "\n")), nil
}

// billingHeader is the beginning of a line that some clients put into the system prompt. The line changes with every
// request.
const billingHeader = "x-anthropic-billing-header"

func stripBilling(parts []jinja.Value) []jinja.Value {
	var out []jinja.Value
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
		if part.Kind() == jinja.KindDict {
			d := part.Dict().Clone()
			d.Set("text", jinja.Text(rest))
			part = jinja.FromDict(d)
		} else {
			part = jinja.Text(rest)
		}
		out = append(out, part)
	}
	return out
}

// knownPartFields has the members of content parts in OpenAI's and vLLM's types. vLLM copies all other members.
var knownPartFields = map[string]bool{"audio_embeds": true, "audio_url": true, "closed": true, "data": true,
	"file": true, "image_embeds": true, "image_pil": true, "image_url": true, "input_audio": true, "name": true,
	"prompt_cache_breakpoint": true, "refusal": true, "text": true, "thinking": true, "type": true, "uuid": true,
	"video_embeds": true, "video_url": true}

// vllmPart returns one part: a dict if format is formatOpenAI, and a text if not.
func (b *bodyReader) vllmPart(part *jinja.Value, format contentFormat) (jinja.Value, error) {
	if part.Kind() == jinja.KindString {
		return wrapped(part.Text(), nil, format), nil
	}
	if part.Kind() != jinja.KindDict {
		return jinja.None, refuse("a content part is a %s", part.TypeName())
	}
	d := part.Dict()
	kind, _ := textOf(d, "type")
	if kind == "" {
		kind = mediaKey(d)
	}
	switch kind {
	case "text", "refusal", "thinking":
		v, _ := d.Get(kind)
		if v.Kind() != jinja.KindString {
			return jinja.None, refuse("a %s part without text", kind)
		}
		return wrapped(v.Text(), d, format), nil
	case "tool_reference":
		name, _ := textOf(d, "name")
		if format != formatOpenAI {
			return jinja.Text(name), nil
		}
		ref := &jinja.Dict{}
		ref.Set("type", jinja.Text(kind))
		ref.Set("name", jinja.Text(name))
		return jinja.FromDict(ref), nil
	case "image_url", "image_embeds":
		return b.vllmMedia("image", kind, d, format)
	case "audio_url", "input_audio", "audio_embeds":
		return b.vllmMedia("audio", kind, d, format)
	case "video_url", "video_embeds":
		return b.vllmMedia("video", kind, d, format)
	case "prompt_embeds":
		return jinja.None, errMedia
	}
	return jinja.None, refuse("unsupported content part %q", kind)
}

// mediaKey returns the kind of a part that has no type.
func mediaKey(d *jinja.Dict) string {
	for _, key := range [...]string{"image_url", "image_embeds", "audio_embeds", "video_embeds", "audio_url",
		"input_audio", "video_url"} {
		if d.Has(key) {
			return key
		}
	}
	return ""
}

// wrapped returns the text s in the given format. In formatOpenAI the result is a part, which also has the members of d
// that are not in knownPartFields.
func wrapped(s string, d *jinja.Dict, format contentFormat) jinja.Value {
	if format != formatOpenAI {
		return jinja.Text(s)
	}
	part := &jinja.Dict{}
	part.Set("type", jinja.Text("text"))
	part.Set("text", jinja.Text(s))
	rideAlong(part, d)
	return jinja.FromDict(part)
}

func rideAlong(part, d *jinja.Dict) {
	for name, v := range d.All() {
		if !knownPartFields[name] {
			part.Set(name, v)
		}
	}
}

func (b *bodyReader) vllmMedia(modality, kind string, d *jinja.Dict, format contentFormat) (jinja.Value, error) {
	m := chatMedia{Kind: kind}
	m.UUID, _ = textOf(d, "uuid")
	if at, _ := d.Get(kind); at.Kind() == jinja.KindString {
		m.URL = at.Text()
	} else if at.Kind() == jinja.KindDict {
		m.URL, _ = textOf(at.Dict(), "url")
	}
	if b.media = append(b.media, m); format != formatOpenAI {
		return jinja.None, errMedia // here vLLM writes the model's own placeholder text, which is not known
	}
	part := &jinja.Dict{}
	part.Set("type", jinja.Text(modality))
	rideAlong(part, d)
	return jinja.FromDict(part), nil
}
