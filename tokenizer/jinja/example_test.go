package jinja_test

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

func Example() {
	t, err := jinja.Parse("{% for n in names %}{{ loop.index }}. {{ n | title }}\n{% endfor %}")
	if err != nil {
		fmt.Println(err)
		return
	}
	vars := &jinja.Dict{}
	vars.Set("names", jinja.List([]jinja.Value{jinja.Text("ada"), jinja.Text("grace")}))
	text, err := t.Render(nil, jinja.Options{}, vars)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", text)
	// Output:
	// 1. Ada
	// 2. Grace
}

func ExampleDecoder() {
	t, _ := jinja.Parse(`{{ body.tools | tojson }}`)
	var d jinja.Decoder
	body, err := d.Decode([]byte(`{"tools": [{"z": 1, "a": 1.0}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	vars := &jinja.Dict{}
	vars.Set("body", body)
	text, err := t.Render(nil, jinja.Options{}, vars)
	fmt.Printf("%s %v\n", text, err)
	// Output: [{"z": 1, "a": 1.0}] <nil>
}

func ExampleRaisedError() {
	t, _ := jinja.Parse(`{{ raise_exception('roles must alternate') }}`)
	_, err := t.Render(nil, jinja.Options{})
	var raised *jinja.RaisedError
	fmt.Println(errors.As(err, &raised), raised.Message)
	// Output: true roles must alternate
}
