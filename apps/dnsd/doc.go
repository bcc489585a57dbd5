// Package dnsd is an authoritative DNS server that knows nothing of the network under it: give ServeUDP any
// net.PacketConn and ServeTCP any net.Listener.
//
// Zones come from standard zone files (RFC 1035 section 5). Answered: positive and negative answers with the zone's SOA
// (RFC 2308), chains of CNAMEs, wildcards (RFC 4592), referrals with glue, EDNS0 sizes with truncation (RFC 6891), TCP
// (RFC 7766). ANY gets one HINFO record (RFC 8482); zone transfers and classes other than IN are refused. Names outside
// every zone go to Config.Forward, if there is one and the query asks for recursion; else they are refused. DNSSEC
// records are served as data but answers carry no proofs; DNAME is not supported and refused when the zone is loaded.
//
// A query takes one road: udp.go (udpbatch.go, where the conn moves many datagrams at once) or tcp.go reads it, cache.go may know the answer already, query.go checks it, lookup.go
// finds the records in the zone (zone.go), forward.go asks elsewhere.
package dnsd
