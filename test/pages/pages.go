// Package pages reads the blocks of code on pages of the documentation, and has the commands
// on them that no test runs.
package pages

import (
	"regexp"
	"slices"
	"strings"
)

// Block is a block of code on a page.
type Block struct {
	// Language is what stands behind the fence, "" for an indented block.
	Language string
	// Line is the number of the first line of the block, with its fence.
	Line int
	// Lines are the lines without the fences and without the indentation of the block.
	Lines []string
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// Blocks returns the blocks of a page. An indented block follows an empty line and has at
// least four spaces.
func Blocks(page string) []Block {
	var out []Block
	var open *Block
	indent, afterEmpty := "", true
	for i, line := range strings.Split(page, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open != nil && open.Language != "":
			if m != nil {
				out, open = append(out, *open), nil
			} else {
				open.Lines = append(open.Lines, strings.TrimPrefix(line, indent))
			}
		case m != nil:
			out = appendIndented(out, open)
			indent, open = m[1], &Block{Language: orText(m[2]), Line: i + 1}
		case open != nil && (strings.HasPrefix(line, indent) || strings.TrimSpace(line) == ""):
			open.Lines = append(open.Lines, strings.TrimPrefix(line, indent))
		case afterEmpty && strings.HasPrefix(line, "    "):
			out = appendIndented(out, open)
			rest := strings.TrimLeft(line, " ")
			indent, open = line[:len(line)-len(rest)], &Block{Line: i + 1, Lines: []string{rest}}
		default:
			out, open = appendIndented(out, open), nil
		}
		afterEmpty = strings.TrimSpace(line) == ""
	}
	return appendIndented(out, open)
}

// orText returns the language of a fence; a fence without one is of plain text.
func orText(language string) string {
	if language = strings.TrimSpace(language); language != "" {
		return language
	}
	return "text"
}

// appendIndented ends an indented block, without the empty lines at its end.
func appendIndented(out []Block, open *Block) []Block {
	if open == nil || open.Language != "" {
		return out
	}
	for strings.TrimSpace(open.Lines[len(open.Lines)-1]) == "" {
		open.Lines = open.Lines[:len(open.Lines)-1]
	}
	return append(out, *open)
}

// remark is a comment behind a command.
var remark = regexp.MustCompile(`(^|\s+)#.*$`)

// Commands returns the commands of an indented block, without their comments. If lines begin
// with a dollar, they are the commands, and the others are their output.
func (b Block) Commands() []string {
	prompts := slices.ContainsFunc(b.Lines, func(line string) bool { return strings.HasPrefix(line, "$ ") })
	var out []string
	for _, line := range b.Lines {
		command, isCommand := strings.CutPrefix(line, "$ ")
		command = strings.TrimSpace(remark.ReplaceAllString(command, ""))
		if command != "" && (isCommand || !prompts) {
			out = append(out, command)
		}
	}
	return out
}
