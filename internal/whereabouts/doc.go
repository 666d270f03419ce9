// Package whereabouts reads the configuration of the IPAM plugin whereabouts
// (v0.9.4, doc/extended-configuration.md) and says which IPPools serve it. Pure
// functions; no I/O.
//
// What it takes is what whereabouts takes. Where Fairlead does something else
// with an option, Parse warns, and docs/user/whereabouts.md says why.
package whereabouts
