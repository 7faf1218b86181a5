package inprocess

import (
	"fmt"
	"time"
)

const chatML = `{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func Example_chatTemplate() {
	t, err := parseTemplate(chatML)
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]}`)
	q, err := t.ReadRequest(body, requestConfig{Engine: engineVLLM})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := q.Render(nil, renderContext{Now: time.Unix(0, 0)})
	fmt.Printf("%s %v\n", text, err)
	// Output:
	// <|im_start|>user
	// Hi!<|im_end|>
	// <|im_start|>assistant
	//  <nil>
}

func Example_readHarmony() {
	body := []byte(`{"model": "gpt-oss", "reasoning_effort": "low",
		"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it raining in Paris?"}],
		"tools": [{"type": "function", "function": {"name": "weather",
			"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]}`)
	pieces, err := readHarmony(body, time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range pieces {
		fmt.Println(p.Special + p.Text)
	}
	// Output:
	// <|start|>
	// system
	// <|message|>
	// You are ChatGPT, a large language model trained by OpenAI.
	// Knowledge cutoff: 2024-06
	// Current date: 2026-11-23
	//
	// Reasoning: low
	//
	// # Valid channels: analysis, commentary, final. Channel must be included for every message.
	// Calls to these tools must go to the commentary channel: 'functions'.
	// <|end|>
	// <|start|>
	// developer
	// <|message|>
	// # Instructions
	//
	// Be brief.
	//
	// # Tools
	//
	// ## functions
	//
	// namespace functions {
	//
	// type weather = (_: {
	// city: string,
	// }) => any;
	//
	// } // namespace functions
	// <|end|>
	// <|start|>
	// user
	// <|message|>
	// Is it raining in Paris?
	// <|end|>
	// <|start|>
	// assistant
}
