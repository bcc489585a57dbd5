package admin

import (
	"crypto/sha256"
	_ "embed" // status.html
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

//go:embed status.html
var statusPage string

const (
	// maxViewers says how many pages may be open at once.
	maxViewers = 32
	// viewerTime says how long a viewer may take to read one event.
	viewerTime = 10 * time.Second
)

// servePage answers with the status page. Its policy allows the script and the style in it, what it
// asks of this listener, and nothing else.
func servePage() http.HandlerFunc {
	policy := fmt.Sprintf("default-src 'none'; connect-src 'self'; img-src data:; "+
		"script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'", hashElement(statusPage, "script"),
		hashElement(statusPage, "style"))
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		fmt.Fprint(w, statusPage) // who asked is gone if it fails
	}
}

// hashElement returns the hash of the only element of a kind, as Content-Security-Policy names it.
func hashElement(html, element string) string {
	_, text, _ := strings.Cut(html, "<"+element+">")
	text, _, _ = strings.Cut(text, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// serveEvents sends a Status each second as a server-sent event, until the viewer goes.
func (h *handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	if h.viewers.Add(1) > maxViewers {
		h.viewers.Add(-1)
		http.Error(w, "too many status pages are open; close one", http.StatusServiceUnavailable)
		return
	}
	defer h.viewers.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	tick := time.NewTicker(statusPause)
	defer tick.Stop()
	for {
		out.SetWriteDeadline(time.Now().Add(viewerTime)) // not all writers have one
		text, err := json.Marshal(h.statusFor(r))
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}
