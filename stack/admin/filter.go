package admin

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// maxFilterText bounds a list, in bytes: a million prefixes.
const maxFilterText = 64 << 20

// filterOf returns the stack's filter, or answers that there is none.
func (h *handler) filterOf(w http.ResponseWriter) *stack.Filter {
	f := h.Stack.Filter()
	if f == nil {
		http.Error(w, "this server was started without a filter: give it one, which may be empty "+
			"(stack.Config.Filter)", http.StatusConflict)
	}
	return f
}

// loadFilter puts the list that the request's body is in the place of the one before.
func (h *handler) loadFilter(w http.ResponseWriter, r *http.Request) {
	f := h.filterOf(w)
	if f == nil {
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFilterText))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	list, err := stack.ParseFilter(string(text))
	if err == nil {
		err = f.Load(list)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	serveJSON(func() any { return f.Status() })(w, r)
}

// setFilterPrefix denies, allows or forgets a prefix.
func (h *handler) setFilterPrefix(w http.ResponseWriter, r *http.Request) {
	f := h.filterOf(w)
	if f == nil {
		return
	}
	p, err := stack.ParseFilterPrefix(r.FormValue("prefix"))
	d := time.Duration(0)
	if s := r.FormValue("for"); s != "" && err == nil {
		d, err = time.ParseDuration(s)
	}
	if err == nil {
		switch verdict := r.FormValue("verdict"); verdict {
		case "deny":
			err = f.Deny(p, d)
		case "allow":
			err = f.Allow(p, d)
		case "forget":
			if !f.Forget(p) {
				err = fmt.Errorf("%s is neither denied nor allowed: filter show lists those that "+
					"are", p)
			}
		default:
			err = fmt.Errorf("verdict %q: want deny, allow or forget", verdict)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	serveJSON(func() any { return f.Status() })(w, r)
}
