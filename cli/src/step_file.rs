//! The step file: named commands that are run in order, each once. Parsing it and reporting
//! mistakes. Pure.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stillframe::records::Question;
use stillframe::steps::{Rerun, RetryPolicy, StepIdentity, StepOptions, StepPlan};

use crate::args::duration;
use crate::toml_text;

/// The largest file, in bytes: commands, and no data.
pub(crate) const MAX_BYTES: u64 = 1024 * 1024;

/// The longest name of a step or a phase, in bytes, which is that of the library.
const MAX_NAME_BYTES: usize = 200;

/// The longest argument that Linux takes, in bytes: execve(2), where it counts the NUL too.
const MAX_WORD_BYTES: usize = 128 * 1024 - 1;

/// The phase of a step that names none.
const DEFAULT_PHASE: &str = "steps";

/// The commands of a file, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepFile {
    #[serde(rename = "step", default)]
    pub(crate) steps: Vec<FileStep>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileStep {
    #[serde(default = "default_phase")]
    pub(crate) phase: String,
    pub(crate) name: String,
    /// What is asked before the command is run, which finds the answer in its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ask: Option<String>,
    /// The answers that are taken; empty: any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) choices: Vec<String>,
    /// How long an answer is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<Lasting>,
    /// The answer that counts after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<StepCommand>,
    /// The message of the commit that is made of what differs once the command has ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// How often it is tried again.
    #[serde(default)]
    pub(crate) retries: u32,
    /// How long after a failure, at first; each further wait is twice as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_delay: Option<Lasting>,
    /// How long each attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<Lasting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rerun: Option<FileRerun>,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a command is a line for the shell, or a list of words: a program and its arguments"
)]
pub(crate) enum StepCommand {
    /// A program with its arguments.
    Program(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
}

/// How a step that was interrupted is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileRerun {
    FromBefore,
    InPlace,
    Ask,
}

/// A length of time as it is written: `90s`, `15m`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Lasting {
    text: String,
    pub(crate) duration: Duration,
}

impl TryFrom<String> for Lasting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let duration = duration(&text)?;
        Ok(Self { text, duration })
    }
}

impl From<Lasting> for String {
    fn from(lasting: Lasting) -> Self {
        lasting.text
    }
}

fn default_phase() -> String {
    DEFAULT_PHASE.to_owned()
}

impl StepFile {
    /// What a file says; the error says where it is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|e| toml_text::located(text, &e))?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.steps.is_empty() {
            return Err("there is no [[step]] in it".to_owned());
        }
        let mut names = HashSet::new();
        for step in &self.steps {
            let (phase, name) = (&step.phase, &step.name);
            if name.trim().is_empty() || phase.trim().is_empty() {
                return Err("a step and its phase need names".to_owned());
            }
            for (noun, text) in [("name of a step", name), ("name of a phase", phase)] {
                if text.len() > MAX_NAME_BYTES {
                    return Err(format!(
                        "the {noun} has {} bytes, more than {MAX_NAME_BYTES}",
                        text.len()
                    ));
                }
                // It is part of a line, wherever it is told.
                if text.contains(char::is_control) {
                    return Err(format!(
                        "the {noun} {text:?} has a line end or another control character in it"
                    ));
                }
            }
            if !names.insert((phase, name.clone())) {
                return Err(format!("there are two steps {name:?} in phase {phase:?}"));
            }
            let is_empty = step.command.as_ref().is_some_and(|command| match command {
                StepCommand::Program(words) => words.first().is_none_or(String::is_empty),
                StepCommand::Shell(line) => line.trim().is_empty(),
            });
            step.check_question()?;
            if step.command.is_none() && step.ask.is_none() && step.commit.is_none() {
                return Err(format!("step {name:?} has no command"));
            }
            if step
                .commit
                .as_ref()
                .is_some_and(|text| text.trim().is_empty())
            {
                return Err(format!(
                    "the message of the commit of step {name:?} is empty"
                ));
            }
            for (noun, text) in step.texts() {
                if text.contains('\0') {
                    return Err(format!("the {noun} of step {name:?} has a NUL in it"));
                }
            }
            if is_empty {
                return Err(format!("the command of step {name:?} is empty"));
            }
            let words = step.words();
            if let Some(long) = words.iter().find(|word| word.len() > MAX_WORD_BYTES) {
                return Err(format!(
                    "the command of step {name:?} has a word, or a line, of {} bytes, and the system takes {MAX_WORD_BYTES}",
                    long.len()
                ));
            }
            if step
                .timeout
                .as_ref()
                .is_some_and(|limit| limit.duration.is_zero())
            {
                return Err(format!("the timeout of step {name:?} is zero"));
            }
        }
        for step in &self.steps {
            let Some(commit) = step.commit_step() else {
                continue;
            };
            if names.contains(&(&step.phase, commit.clone())) {
                return Err(format!(
                    "a step of phase {:?} has the name of the commit of step {:?}, {commit:?}",
                    step.phase, step.name
                ));
            }
            if commit.len() > MAX_NAME_BYTES {
                return Err(format!(
                    "the name of the commit of step {:?} has {} bytes, more than {MAX_NAME_BYTES}",
                    step.name,
                    commit.len()
                ));
            }
        }
        Ok(())
    }

    /// Where a step of the record is among these, from 0.
    pub(crate) fn place_of(&self, phase: &str, name: &str) -> Option<usize> {
        self.steps.iter().position(|step| {
            step.phase == phase
                && (step.name == name || step.commit_step().is_some_and(|commit| commit == name))
        })
    }

    /// The steps, to be compared with what is on record.
    pub(crate) fn plan(&self) -> StepPlan {
        self.steps.iter().fold(StepPlan::new(), |plan, step| {
            let identity = StepIdentity::new(&step.phase, 0, &step.name);
            let plan = plan.step(identity, step.definition());
            match step.commit_step() {
                Some(commit) => {
                    let identity = StepIdentity::new(&step.phase, 0, commit);
                    plan.step(identity, step.commit_definition())
                }
                None => plan,
            }
        })
    }

    /// Whether no later step is in the phase of the one at `place`.
    pub(crate) fn is_last_of_its_phase(&self, place: usize) -> bool {
        let phase = &self.steps[place].phase;
        self.steps[place + 1..]
            .iter()
            .all(|step| step.phase != *phase)
    }
}

impl FileStep {
    /// Refuses what is no question, before anything is run.
    fn check_question(&self) -> Result<(), String> {
        let name = &self.name;
        if self.ask.is_none() {
            let is_bare =
                self.choices.is_empty() && self.deadline.is_none() && self.default.is_none();
            return match is_bare {
                true => Ok(()),
                false => Err(format!(
                    "step {name:?} has choices, deadline or default, and asks nothing"
                )),
            };
        }
        if self.deadline.is_some() != self.default.is_some() {
            return Err(format!(
                "step {name:?} needs both a deadline and a default, or neither"
            ));
        }
        if self.ask.as_ref().is_some_and(|text| text.trim().is_empty()) {
            return Err(format!("the question of step {name:?} is empty"));
        }
        match self.question().map(|question| question.check()) {
            Some(Err(e)) => Err(format!("step {name:?} asks what cannot be asked: {e}")),
            _ => Ok(()),
        }
    }

    /// What of it is handed to a program, a repository or the log.
    fn texts(&self) -> Vec<(&'static str, String)> {
        let words = self.words().into_iter().map(|word| ("command", word));
        let choices = self.choices.iter().map(|choice| ("choice", choice.clone()));
        let others = [
            ("question", &self.ask),
            ("default", &self.default),
            ("commit", &self.commit),
        ];
        let others = others
            .into_iter()
            .filter_map(|(noun, text)| Some((noun, text.clone()?)));
        words.chain(choices).chain(others).collect()
    }

    /// What it asks, if it asks.
    pub(crate) fn question(&self) -> Option<Question> {
        let question = Question::new(self.ask.as_ref()?).choices(&self.choices);
        Some(match (&self.deadline, &self.default) {
            (Some(after), Some(default)) => question.deadline(after.duration, default),
            _ => question,
        })
    }

    /// The program and its arguments; empty: there is none.
    pub(crate) fn words(&self) -> Vec<String> {
        match &self.command {
            Some(StepCommand::Program(words)) => words.clone(),
            Some(StepCommand::Shell(line)) => {
                vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]
            }
            None => Vec::new(),
        }
    }

    /// What it runs, for people.
    pub(crate) fn line(&self) -> String {
        match &self.command {
            Some(StepCommand::Program(words)) => words.join(" "),
            Some(StepCommand::Shell(line)) => line.trim().to_owned(),
            None => String::new(),
        }
    }

    /// The name of the step of the record that makes its commit, behind the one that runs its
    /// command: what the command did is on record by then, and is not done again for the commit's
    /// sake. `None`: it commits nothing, or does nothing besides.
    pub(crate) fn commit_step(&self) -> Option<String> {
        let is_own = self.commit.is_some() && self.command.is_some();
        is_own.then(|| format!("{} (commit)", self.name))
    }

    fn commit_definition(&self) -> serde_json::Value {
        json!({ "commit": self.commit })
    }

    /// What makes its result this step's: the question, the command, the commit. How long it may
    /// take and how often it is tried can be changed at any time, and which answers are taken until
    /// it is asked.
    fn definition(&self) -> serde_json::Value {
        let mut definition = json!({ "command": self.command });
        if let Some(ask) = &self.ask {
            definition["ask"] = json!(ask);
        }
        if let Some(commit) = &self.commit {
            definition["commit"] = json!(commit);
        }
        definition
    }

    fn retry(&self) -> RetryPolicy {
        let standard = RetryPolicy::STANDARD;
        let first = self
            .retry_delay
            .as_ref()
            .map_or(standard.first_delay, |d| d.duration);
        standard
            .attempts(self.retries.saturating_add(1))
            .first_delay(first)
            .max_delay(standard.max_delay.max(first))
    }

    /// How its commit is done, where that is a step of its own. It is done on what is there:
    /// nothing of it has to be undone for it to be done again, and a commit that is made stays.
    pub(crate) fn commit_options(&self) -> Option<StepOptions> {
        let options = StepOptions::new(self.commit_step()?)
            .definition(self.commit_definition())
            .retry(self.retry())
            .rerun(Rerun::InPlace);
        Some(options)
    }

    /// How it is done.
    pub(crate) fn options(&self) -> StepOptions {
        let options = StepOptions::new(&self.name)
            .definition(self.definition())
            .retry(self.retry());
        match self.rerun {
            // There is nothing to undo but the commit itself.
            None if self.command.is_none() => options.rerun(Rerun::InPlace),
            None => options,
            Some(FileRerun::FromBefore) => options.rerun(Rerun::FromBefore),
            Some(FileRerun::InPlace) => options.rerun(Rerun::InPlace),
            Some(FileRerun::Ask) => options.rerun(Rerun::Ask),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[step]]
        phase = "build"
        name = "compile"
        command = ["make", "-j2"]
        retries = 2
        retry_delay = "5s"
        timeout = "15m"
        rerun = "in_place"

        [[step]]
        name = "test"
        command = "make test | tee log"
    "#;

    #[test]
    fn a_file_says_what_is_run_and_how() {
        let file = StepFile::parse(FILE).unwrap();
        let [compile, test] = file.steps.as_slice() else {
            panic!("two steps: {file:?}");
        };
        assert_eq!(compile.words(), ["make", "-j2"]);
        assert_eq!(compile.options().retry.attempts, 3);
        assert_eq!(compile.options().retry.first_delay, Duration::from_secs(5));
        assert_eq!(compile.options().rerun, Some(Rerun::InPlace));
        assert_eq!(
            compile.timeout.as_ref().unwrap().duration,
            Duration::from_secs(900)
        );
        assert_eq!(test.phase, "steps");
        assert_eq!(test.words(), ["/bin/sh", "-c", "make test | tee log"]);
        assert_eq!(test.options().retry.attempts, 1);
        assert_eq!(test.options().rerun, None);
        assert!(file.is_last_of_its_phase(0) && file.is_last_of_its_phase(1));
    }

    #[test]
    fn what_was_kept_of_a_file_is_the_file() {
        let file = StepFile::parse(FILE).unwrap();
        let kept = serde_json::to_value(&file).unwrap();
        assert_eq!(serde_json::from_value::<StepFile>(kept).unwrap(), file);
    }

    #[test]
    fn a_step_may_ask_and_commit_and_those_make_its_definition() {
        let text = "[[step]]\nname = 'a'\nask = 'go?'\nchoices = ['yes', 'no']\ndeadline = '1h'\n\
                    default = 'no'\ncommit = 'Release'\nrerun = 'ask'";
        let file = StepFile::parse(text).unwrap();
        let question = file.steps[0].question().unwrap();
        assert_eq!(question.choices, ["yes", "no"]);
        let hour = Duration::from_secs(3600);
        assert_eq!(question.deadline, Some((hour, "no".to_owned())));
        assert_eq!(file.steps[0].words(), [""; 0]);
        assert_eq!(file.steps[0].options().rerun, Some(Rerun::Ask));
        let later = StepFile::parse(&text.replace("1h", "2h")).unwrap();
        assert_eq!(file.plan(), later.plan());
        for (from, to) in [("go?", "stop?"), ("Release", "Ship")] {
            let other = StepFile::parse(&text.replace(from, to)).unwrap();
            assert_ne!(file.plan(), other.plan());
        }
    }

    #[test]
    fn the_commit_of_a_command_is_a_step_of_its_own_whose_name_is_no_others() {
        let commit = "[[step]]\nname = 'a'\ncommand = 'x'\ncommit = 'Release'\nrerun = 'from_before'\nretries = 2\n";
        let file = StepFile::parse(commit).unwrap();
        let options = file.steps[0].commit_options().unwrap();
        assert_eq!(options.name, "a (commit)");
        assert_eq!(
            options.rerun,
            Some(Rerun::InPlace),
            "the command's work stays"
        );
        assert_eq!(options.retry.attempts, 3);
        let alone = StepFile::parse(&commit.replace("command = 'x'\n", "")).unwrap();
        assert_eq!(alone.steps[0].commit_options(), None);
        let other = "[[step]]\nname = 'a (commit)'\ncommand = 'y'\n";
        for text in [[commit, other].concat(), [other, commit].concat()] {
            let said = StepFile::parse(&text).unwrap_err();
            assert!(
                said.contains("the name of the commit of step \"a\""),
                "{said}"
            );
        }
        let elsewhere = other.replace("name", "phase = 'p'\nname");
        StepFile::parse(&[commit, &elsewhere].concat()).unwrap();
        let long = commit.replace("'a'", &format!("'{}'", "a".repeat(192)));
        let said = StepFile::parse(&long).unwrap_err();
        assert!(said.contains("201 bytes"), "{said}");
    }

    #[test]
    fn a_command_makes_a_definition_and_a_limit_does_not() {
        let file = StepFile::parse(FILE).unwrap();
        let slower = StepFile::parse(&FILE.replace("15m", "16m").replace("= 2", "= 3")).unwrap();
        assert_eq!(file.plan(), slower.plan());
        let other = StepFile::parse(&FILE.replace("-j2", "-j3")).unwrap();
        assert_ne!(file.plan(), other.plan());
    }

    #[test]
    fn a_name_that_no_step_can_have_is_refused_before_anything_runs() {
        let text = format!("[[step]]\nname = '{}'\ncommand = 'x'", "x".repeat(201));
        let said = StepFile::parse(&text).unwrap_err();
        assert!(said.contains("201 bytes"), "{said}");
    }

    #[test]
    fn a_question_beyond_what_can_be_asked_is_refused_before_anything_runs() {
        let long = "x".repeat(64 * 1024 + 1);
        let many: Vec<String> = (0..101).map(|n| format!("'{n}'")).collect();
        for (more, why) in [
            (format!("ask = '{long}'"), "at most 65536 bytes"),
            (
                format!("ask = 'go?'\ndeadline = '1h'\ndefault = '{long}'"),
                "at most 65536 bytes",
            ),
            (
                format!("ask = 'go?'\nchoices = [{}]", many.join(", ")),
                "at most 100 choices",
            ),
        ] {
            let text =
                format!("[[step]]\nname = 'first'\ncommand = 'x'\n[[step]]\nname = 'a'\n{more}");
            let said = StepFile::parse(&text).unwrap_err();
            assert!(said.contains(why) && said.contains("step \"a\""), "{said}");
            assert!(said.len() < 300, "{} bytes", said.len());
        }
    }

    // A line of that length is refused by the kernel, in the middle of the run.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the kernel is the oracle")]
    fn a_word_that_the_system_does_not_take_is_refused_and_a_shorter_one_is_run() {
        for (bytes, is_taken) in [(MAX_WORD_BYTES, true), (MAX_WORD_BYTES + 1, false)] {
            let word = "x".repeat(bytes);
            for command in [format!("'{word}'"), format!("['true', '{word}']")] {
                let text = format!("[[step]]\nname = 'a'\ncommand = {command}");
                let parsed = StepFile::parse(&text);
                assert_eq!(parsed.is_ok(), is_taken, "{bytes} bytes");
                if let Err(said) = parsed {
                    assert!(said.contains("131072 bytes"), "{said}");
                }
            }
            let ran = std::process::Command::new("true").arg(word).status();
            assert_eq!(ran.is_ok(), is_taken, "{bytes} bytes: {ran:?}");
        }
    }

    #[test]
    fn of_a_long_line_that_is_wrong_the_beginning_is_told() {
        let long = "é".repeat(100_000);
        for text in [
            format!("[[step]]\nname = 'a'\ncommand = '{long}' x"),
            format!("[[step]]\nname = 'a'\n\"{long}\" = 'x'"),
        ] {
            let said = StepFile::parse(&text).unwrap_err();
            assert!(said.contains("line 3"), "{said}");
            assert!(
                said.chars().count() < 1000,
                "{} characters",
                said.chars().count()
            );
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (text, why) in [
            ("", "no [[step]]"),
            ("step = []", "no [[step]]"),
            ("[[step]]\nname = 'a'\ncommand = 1", "a list of words"),
            ("[[step]]\nname = 'a'", "has no command"),
            ("[[step]]\nname = 'a'\nask = ' '", "is empty"),
            ("[[step]]\nname = 'a'\ncommit = ''", "is empty"),
            (
                "[[step]]\nname = 'a'\ncommand = 'x'\nchoices = ['y']",
                "asks nothing",
            ),
            (
                "[[step]]\nname = 'a'\nask = 'go?'\ndeadline = '1h'",
                "both a deadline and a default",
            ),
            (
                "[[step]]\nname = 'a'\nask = 'go?'\nchoices = ['y']\ndeadline = '1h'\ndefault = 'n'",
                "none of the answers that are taken",
            ),
            (
                "[[step]]\nname = 'a'\nask = 'go?'\nchoices = ['y', ' ']",
                "step \"a\" asks what cannot be asked: a choice of a question is empty",
            ),
            (
                "[[step]]\nname = 'a'\nask = 'go?'\nchoices = ['y', 'n', 'y']",
                "\"y\" of a question is there twice",
            ),
            (
                "[[step]]\nname = 'a'\nask = \"go\\u0000?\"",
                "the question of step \"a\" has a NUL",
            ),
            (
                "[[step]]\nname = 'a'\ncommit = \"x\\u0000\"",
                "the commit of step \"a\" has a NUL",
            ),
            (
                "[[step]]\nname = 'a'\nask = 'go?'\ndeadline = '1h'\ndefault = \"y\\u0000\"",
                "the default of step \"a\" has a NUL",
            ),
            (
                "[[step]]\nname = \"a\\nb\"\ncommand = 'x'",
                "control character",
            ),
            (
                "[[step]]\nname = \"a\\u0000\"\ncommand = 'x'",
                "control character",
            ),
            (
                "[[step]]\nname = 'a'\nphase = \"p\\u001b[2J\"\ncommand = 'x'",
                "control character",
            ),
            ("[[step]]\nname = ' '\ncommand = 'x'", "need names"),
            ("[[step]]\nname = 'a'\ncommand = []", "is empty"),
            ("[[step]]\nname = 'a'\ncommand = ' '", "is empty"),
            (
                "[[step]]\nname = 'a'\ncommand = 'x'\ntimeout = '0s'",
                "zero",
            ),
            (
                "[[step]]\nname = 'a'\ncommand = 'x'\ntimeout = 'soon'",
                "timeout",
            ),
            (
                "[[step]]\nname = 'a'\ncommand = 'x'\nretry = 1",
                "unknown field",
            ),
            (
                "[[step]]\nname = 'a'\ncommand = 'x'\n[[step]]\nname = 'a'\ncommand = 'y'",
                "two steps",
            ),
            ("[[step]]\nname = 'a'\ncommand = \"x\\u0000\"", "NUL"),
            ("[[step]\n", "line 1"),
        ] {
            let said = StepFile::parse(text).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }
}
