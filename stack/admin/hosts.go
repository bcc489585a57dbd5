package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// OnlyHosts is handler for requests that name, as their Host, an IP address, localhost or one of
// names; other requests are answered by 421 (RFC 9110 section 15.5.20). A web page elsewhere whose
// name is made to resolve to this machine (DNS rebinding) would otherwise read what is served, by
// a browser here: its requests have that page's name as Host.
func OnlyHosts(handler http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isHost(r.Host, names) {
			http.Error(w, fmt.Sprintf("%q is no name of this server: ask for its IP address, or "+
				"have the name added to the server's (--admin-host NAME of rdma-netstack)", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// isHost reports whether a Host field, with or without a port, is an IP address, localhost or
// among names. HTTP/1.0 has none, and no browser speaks that.
func isHost(host string, names []string) bool {
	if host == "" {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(host, ".")
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(bare); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(names,
		func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) })
}
