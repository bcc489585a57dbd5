// Package dnsd is an authoritative DNS server that does not depend on the network under it: give
// ServeUDP any net.PacketConn and ServeTCP any net.Listener.
//
// Zones come from standard zone files (RFC 1035 section 5). Answered: positive and negative answers
// with the zone's SOA (RFC 2308), chains of CNAMEs, wildcards (RFC 4592), referrals with glue,
// EDNS0 sizes with truncation (RFC 6891), TCP (RFC 7766). ANY gets one HINFO record (RFC 8482);
// zone transfers and classes other than IN are refused. Names outside every zone go to
// Config.Forward, if there is one and the query asks for recursion; otherwise they are refused.
// DNSSEC records are served as data but answers carry no proofs; DNAME is not supported and refused
// when the zone is loaded.
//
// The resources of clients are limited. Over UDP each prefix gets Config.ResponseRate answers per
// second. A question that is being forwarded is not forwarded again: later queries for it wait for
// its answer. The 256 questions in progress are shared among clients. Names are sent in random
// case, which an answer must repeat. TCP clients have 30 s for their next query, or 2 s when more
// than half of the 512 connections are in use, and a new connection replaces the one that has been
// idle longest.
//
// The path of a query: udp.go (udp_batch.go, where the conn moves many datagrams at once, or calls
// us where it receives them) or tcp.go reads it, limit.go may refuse it, cache.go may have the
// answer, query.go checks it, lookup.go finds the records in the zone (zone.go), forward.go asks a
// resolver, once for all waiting queries (flights.go).
package dnsd
