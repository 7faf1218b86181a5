package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
)

// The page loads nothing else: no font, no library, no address.
var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
	//go:embed plot.js
	plotJS string

	page = template.Must(template.New("page").Parse(pageHTML))
)

// WriteHTML writes the report as one page with plots. The page works from a file, offline, in light and dark colour
// schemes. If the browser runs no scripts, the page shows the table.
func WriteHTML(w io.Writer, r *Report) error {
	r.complete()
	// encoding/json writes <, > and & as \u003c and so on. So nothing in the data can end the script element.
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	var text strings.Builder
	if err := WriteText(&text, r); err != nil {
		return err
	}
	err = page.Execute(w, struct {
		Title, Text  string
		Style        template.CSS
		Data, Script template.JS
	}{
		Title:  r.Workload.Name + " – Warmpath report",
		Text:   text.String(),
		Style:  template.CSS(pageCSS),
		Data:   template.JS(data),
		Script: template.JS(plotJS + pageJS),
	})
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
