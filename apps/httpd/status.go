package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
)

const pageHead = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>Status</title>
<style>body{font:14px sans-serif;margin:2em}td{padding:1px 1em 1px 0;font-variant-numeric:tabular-nums}td+td{text-align:right}</style>
</head><body><h1>Status</h1><table>
`

// status holds the data of both status pages.
type status struct {
	Server Counters `json:"server"`
	Status any      `json:"status,omitempty"`
}

func (s *Server) statusBytes() ([]byte, error) {
	st := status{Server: s.Counters()}
	if s.cfg.Status != nil {
		st.Status = s.cfg.Status()
	}
	return json.MarshalIndent(st, "", "  ")
}

func (s *Server) statusJSON(w http.ResponseWriter, _ *http.Request) {
	b, err := s.statusBytes()
	if err != nil {
		http.Error(w, fmt.Sprintf("encode status: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(append(b, '\n'))
}

func (s *Server) statusPage(w http.ResponseWriter, _ *http.Request) {
	b, err := s.statusBytes()
	if err != nil {
		http.Error(w, fmt.Sprintf("encode status: %v", err), http.StatusInternalServerError)
		return
	}
	var page bytes.Buffer
	page.WriteString(pageHead)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	writeRows(&page, dec, "")
	page.WriteString("</table><p><a href=\"/-/status.json\">as JSON</a></p></body></html>\n")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(page.Bytes())
}

// writeRows writes one table row per leaf of the JSON value that dec reads next, named by its path,
// in the value's own order.
func writeRows(page *bytes.Buffer, dec *json.Decoder, path string) {
	tok, err := dec.Token()
	if err != nil {
		return
	}
	delim, nested := tok.(json.Delim)
	if !nested {
		fmt.Fprintf(page, "<tr><td>%s</td><td>%s</td></tr>\n", html.EscapeString(path),
			html.EscapeString(fmt.Sprint(tok)))
		return
	}
	for i := 0; dec.More(); i++ {
		name := strconv.Itoa(i)
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return
			}
			name = fmt.Sprint(key)
		}
		writeRows(page, dec, strings.TrimPrefix(path+"."+name, "."))
	}
	_, _ = dec.Token() // the closing bracket
}
