package link

import "strings"

// AliasPrefix begins the alias of every link of Fairlead.
const AliasPrefix = "fairlead "

// OwnerAlias returns the words with which the alias of every link of a sandbox begins. They
// name the owner without a record.
func OwnerAlias(containerID, ifname string) string {
	return AliasPrefix + containerID + " " + ifname
}

// LongAlias returns an OwnerAlias with one word more, if the word fits.
func LongAlias(containerID, ifname, word string) string {
	alias := OwnerAlias(containerID, ifname)
	if long := alias + " " + word; len(long) <= MaxAliasLength && !strings.Contains(word, " ") {
		return long
	}
	return alias
}

// ParseAlias returns the owner in an alias, and the rest of the alias.
func ParseAlias(alias string) (containerID, ifname, rest string, ok bool) {
	words, ok := strings.CutPrefix(alias, AliasPrefix)
	if !ok {
		return "", "", "", false
	}
	containerID, words, ok = strings.Cut(words, " ")
	ifname, rest, _ = strings.Cut(words, " ")
	return containerID, ifname, rest, ok
}
