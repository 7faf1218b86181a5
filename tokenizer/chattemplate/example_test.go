package chattemplate_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/tokenizer/chattemplate"
)

const chatML = `{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func Example() {
	t, err := chattemplate.Parse(chatML)
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]}`)
	q, err := t.ReadRequest(body, chattemplate.RequestConfig{Engine: chattemplate.EngineVLLM})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := q.Render(nil, chattemplate.RenderContext{Now: time.Unix(0, 0)})
	fmt.Printf("%s %v\n", text, err)
	// Output:
	// <|im_start|>user
	// Hi!<|im_end|>
	// <|im_start|>assistant
	//  <nil>
}

func ExampleRaisedError() {
	t, _ := chattemplate.Parse(`{{ raise_exception('roles must alternate') }}`)
	_, err := t.Render(nil, chattemplate.Input{Messages: []byte(`[]`)})
	var raised *chattemplate.RaisedError
	fmt.Println(errors.As(err, &raised), raised.Message)
	// Output: true roles must alternate
}
