package stack

import "net/http"

// HTTPTransport is http.DefaultTransport with this stack's DialContext instead of the host's, and
// without the host's proxy settings. Each call returns a new one with its own idle connections.
func (s *Stack) HTTPTransport() *http.Transport {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // a program may have replaced it
		base = &http.Transport{ForceAttemptHTTP2: true}
	}
	t := base.Clone()
	t.Proxy = nil
	t.DialContext = s.DialContext
	return t
}

// HTTPClient is a client whose requests leave through this stack.
func (s *Stack) HTTPClient() *http.Client { return &http.Client{Transport: s.HTTPTransport()} }
