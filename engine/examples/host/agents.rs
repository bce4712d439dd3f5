//! The work of the host's runs. Each adapter is made from the JSON that its run was submitted with.

use serde::Deserialize;
use serde_json::json;
use stillframe::events::EventType;
use stillframe::policy::Usage;
use stillframe::steps::ToolOptions;
use stillframe::{Adapter, AdapterError, AdapterOutput, RunContext};

/// Asks a model, and reports what it says. This one answers by itself.
#[derive(Deserialize)]
pub(crate) struct Model {
    prompt: String,
}

impl Adapter for Model {
    // It gets a minute, and five seconds more to end, if the host gives no other time.
    fn calls_model(&self) -> bool {
        true
    }

    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let said = json!({ "role": "user", "text": self.prompt });
        context.emit(EventType::MESSAGE_SENT, said).await?;
        let answer = context.stream_message("answer");
        for piece in ["That is ", "a square ", "number."] {
            answer.push(piece).await?;
        }
        answer.finish().await?;
        context.report_usage(Usage::tokens(120, 8)).await?;
        context.set_state("answered", json!(true), "model").await?;
        Ok(AdapterOutput::empty())
    }
}

/// Uses a tool that the host's policy asks a person about.
pub(crate) struct Deployment;

impl Adapter for Deployment {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let call = async { Ok("version 2 is out") };
        let tool = context.call_tool(ToolOptions::new("Bash"), call).await?;
        Ok(AdapterOutput::with_data(json!(tool.value)))
    }
}
