package chat_test

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/tokens/chat"
)

const chatML = `{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func Example() {
	t, err := chat.Parse(chatML)
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]}`)
	q, err := t.ReadRequest(body, chat.RequestConfig{Engine: chat.EngineVLLM})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := q.Render(nil, chat.RenderContext{Now: time.Unix(0, 0)})
	fmt.Printf("%s %v\n", text, err)
	// Output:
	// <|im_start|>user
	// Hi!<|im_end|>
	// <|im_start|>assistant
	//  <nil>
}
