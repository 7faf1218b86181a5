package policy

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// ParameterKeys returns the keys of p's parameters in the order of the struct. A key in a group is written group.key.
func ParameterKeys(p Parameters) []string {
	var keys []string
	eachParameter(reflect.ValueOf(p).Elem(), "", func(key string, _ reflect.Value) { keys = append(keys, key) })
	return keys
}

// SetParameter sets one of p's parameters from text: a number, true or false, a duration such as 2s, or a word.
func SetParameter(p Parameters, key, value string) error {
	var field reflect.Value
	eachParameter(reflect.ValueOf(p).Elem(), "", func(k string, v reflect.Value) {
		if k == key {
			field = v
		}
	})
	if !field.IsValid() {
		return fmt.Errorf("there is no %q (known: %s)", key, strings.Join(ParameterKeys(p), ", "))
	}
	if err := setText(field, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// ParameterText returns one of p's parameters in the form that SetParameter reads; "" for a list and for an unknown
// key.
func ParameterText(p Parameters, key string) string {
	text := ""
	eachParameter(reflect.ValueOf(p).Elem(), "", func(k string, v reflect.Value) {
		switch {
		case k != key:
		case v.Kind() == reflect.Slice:
		default:
			text = fmt.Sprint(v.Interface())
		}
	})
	return text
}

func eachParameter(v reflect.Value, under string, visit func(key string, v reflect.Value)) {
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		if field := v.Field(i); field.Kind() == reflect.Struct {
			eachParameter(field, under+key+".", visit)
		} else {
			visit(under+key, field)
		}
	}
}

func setText(field reflect.Value, text string) error {
	switch field.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 50ms, 2s or 1m30s", text)
		}
		field.SetInt(int64(d))
		return nil
	}
	switch field.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		field.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil && field.Kind() == reflect.Int64:
			return fmt.Errorf("%q is not a number of bytes, without a unit", text)
		case err != nil:
			return fmt.Errorf("%q is not a whole number", text)
		}
		field.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		field.SetFloat(f)
	case reflect.String:
		field.SetString(text)
	default:
		return fmt.Errorf("cannot be given as text; write it in the file")
	}
	return nil
}
